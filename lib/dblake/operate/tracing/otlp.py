"""Export steps as spans: one trace for a job's run, or one for each outermost step of a job that runs on.

Place: behind ``base.core.steps``; a job sets it as the process's tracer. OpenTelemetry's variables configure endpoint,
headers, sampling, queue and resource. Guarantee: export happens in a thread of the SDK's, with a bounded queue; a
collector that fails costs spans, one warning, and at most ``_FLUSH_SECONDS`` at the job's end. A trace has at most
``_MAX_SPANS`` spans, and none lasts longer than a run or a cycle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dblake import __version__
from dblake.base.core.errors import DblakeError
from dblake.base.core.steps import UNTRACED, Fact, TracedStep

_MAX_SPANS = 1000
_FLUSH_SECONDS = 5.0
_PREFIX = "dblake."

logger = logging.getLogger(__name__)


class _Trace:
    """Counts the spans of one trace."""

    def __init__(self) -> None:
        self.spans, self.dropped = 1, 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Return True if the trace has room for another span."""
        with self._lock:
            has_room = self.spans < _MAX_SPANS
            self.spans += has_room
            self.dropped += not has_room
        return has_room

    def give_back(self) -> None:
        """Return the place of a span that is not exported."""
        with self._lock:
            self.spans -= 1


class _OtlpSpan:
    """One span of OpenTelemetry's, in its trace."""

    def __init__(self, span: trace.Span, of_trace: _Trace, *, is_root: bool) -> None:
        self.span, self.trace, self._is_root = span, of_trace, is_root
        self._is_dropped = False

    def note(self, **facts: Fact) -> None:
        self.span.set_attributes({_PREFIX + name: value for name, value in facts.items()})

    def drop(self) -> None:
        self._is_dropped = True

    def end(self, error: BaseException | None) -> None:
        if self._is_dropped and error is None:
            self.trace.give_back()
            return  # a span that never ends is never exported
        if isinstance(error, Exception):
            # A message of ours holds no values; that of another exception might.
            what = error.what if isinstance(error, DblakeError) else ""
            self.span.set_attribute("error.type", type(error).__name__)
            self.span.set_status(trace.StatusCode.ERROR, what)
        if self._is_root and self.trace.dropped:
            self.note(spans_dropped=self.trace.dropped)
        self.span.end()


class _Exporter(SpanExporter):
    """OTLP over HTTP; warns once if spans are lost."""

    def __init__(self) -> None:
        self._inner = OTLPSpanExporter()
        self._has_warned = False

    def warn(self) -> None:
        """Warn that spans are lost, once."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("traces are lost: the OTLP endpoint does not take them; the job continues. Next: correct "
                           "OTEL_EXPORTER_OTLP_ENDPOINT, or the collector")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.warn()
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


class OtlpTracer:
    """The tracer of one job's run; of one that ``runs_on``, each outermost step is a trace of its own.

    ``parent`` is the W3C ``traceparent`` of what started the job, if that is traced.
    """

    def __init__(self, job: str, parent: str | None = None, *, runs_on: bool) -> None:
        # Its log shows each attempt; `_Exporter` warns once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._job = job
        self._outside = TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent else Context()
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._exporter = _Exporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("dblake", __version__)
        self._facts: dict[str, Fact] = {"job": job}
        self._run: _OtlpSpan | None = None
        self._runs_on = runs_on
        self._began = time.time_ns()
        self._lock = threading.Lock()

    def note(self, **facts: Fact) -> None:
        """Set facts that the outermost span of each trace has."""
        self._facts |= facts

    def begin(self, name: str, parent: TracedStep | None) -> TracedStep:
        """Begin a span inside another one, or outermost; see Tracer."""
        if parent is UNTRACED:
            return UNTRACED
        outer = parent if isinstance(parent, _OtlpSpan) else self._run_span()
        if outer is None:
            return self._root(name)
        if not outer.trace.take():
            return UNTRACED
        span = self._tracer.start_span(name, trace.set_span_in_context(outer.span, Context()))
        return _OtlpSpan(span, outer.trace, is_root=False)

    def close(self, error: BaseException | None) -> None:
        """End the run's span and export what is left, for some seconds at most."""
        if run := self._run_span():
            run.end(error)
        flushing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
        if flushing.is_alive():
            self._exporter.warn()

    def _run_span(self) -> _OtlpSpan | None:
        """Return the span of the whole run; None for a job that runs on."""
        if self._runs_on:
            return None
        with self._lock:
            if self._run is None:
                self._run = self._root(f"dblake {self._job}", self._began)
            return self._run

    def _root(self, name: str, start: int | None = None) -> _OtlpSpan:
        root = _OtlpSpan(self._tracer.start_span(name, self._outside, start_time=start), _Trace(), is_root=True)
        root.note(**self._facts)
        return root


def _resource() -> Resource:
    """Return OpenTelemetry's resource, with our name unless the variables have one."""
    resource = Resource.create()
    named = not str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    ours = {SERVICE_VERSION: __version__} | ({} if named else {SERVICE_NAME: "dblake"})
    return resource.merge(Resource(ours))
