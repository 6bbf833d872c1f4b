"""Which jobs are traced, and what a trace holds; ``e2e`` has the jobs themselves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dblake.base.core.errors import StateError
from dblake.base.core.steps import in_step, step, trace_to
from dblake.operate.tracing.otlp import OtlpTracer
from dblake.operate.tracing.switch import is_traced, open_tracer
from tests.support.recorder import Recorder


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
    ],
)
def test_tracing_is_switched_on_by_an_endpoint(environment: dict[str, str], expected: bool) -> None:
    assert is_traced(environment) is expected


def test_tracing_by_another_protocol_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert open_tracer("run", variables, runs_on=False) is None
    assert "the OTLP protocol grpc is not supported" in caplog.text


def trace(monkeypatch: pytest.MonkeyPatch, work: Any, *, runs_on: bool = False) -> list[Any]:
    """Run ``work`` traced, and return the spans that were exported."""
    with Recorder() as recorder:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", recorder.url)
        tracer = OtlpTracer("run", runs_on=runs_on)
        trace_to(tracer)
        try:
            work()
        finally:
            trace_to(None)
            tracer.close(None)
        messages = [ExportTraceServiceRequest.FromString(request.body) for request in recorder.requests]
    return [span for one in messages for resource in one.resource_spans for scope in resource.scope_spans
            for span in scope.spans]


def test_trace_keeps_its_first_thousand_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is inside a step that has no room is not recorded either; the trace has the number of those missing."""

    def work() -> None:
        for _ in range(1500):
            with step("outer"), step("inner"):
                pass

    spans = trace(monkeypatch, work)
    [root] = [span for span in spans if span.name == "dblake run"]
    assert len(spans) == 1000
    assert {a.key: a.value.int_value for a in root.attributes}["dblake.spans_dropped"] == 1001


def test_span_of_failed_step_has_our_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        for error in (StateError("table t is behind"), ValueError("a row's value")):
            with pytest.raises(type(error)), step(type(error).__name__):
                raise error

    statuses = {span.name: span.status.message for span in trace(monkeypatch, work)}
    assert statuses == {"dblake run": "", "StateError": "table t is behind", "ValueError": ""}


def test_step_in_another_thread_is_inside_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold(_: int) -> None:
        with step("fold"):
            pass

    def work() -> None:
        with step("state"), ThreadPoolExecutor(2) as pool:
            list(pool.map(in_step(fold), range(4)))

    spans = trace(monkeypatch, work, runs_on=True)
    [state] = [span for span in spans if span.name == "state"]
    assert [span.parent_span_id for span in spans if span.name == "fold"] == [state.span_id] * 4
    assert state.parent_span_id == b""


def test_step_that_is_dropped_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with step("idle") as span:
            span.drop()

    assert trace(monkeypatch, work, runs_on=True) == []


def test_dropped_steps_take_no_place_in_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        for _ in range(1500):
            with step("idle") as span:
                span.drop()
        with step("busy"):
            pass

    assert {span.name for span in trace(monkeypatch, work)} == {"dblake run", "busy"}


def test_step_of_generator_that_another_thread_closes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> Iterator[int]:
        with step("read"):
            yield 1

    def work() -> None:
        reading = read()
        next(reading)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(reading.close).result()  # type: ignore[attr-defined]

    assert [span.name for span in trace(monkeypatch, work, runs_on=True)] == ["read"]


def test_setup_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "nope",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert open_tracer("run", variables, runs_on=False) is None
    assert "no traces: their set-up fails (RuntimeError)" in caplog.text and "nope" not in caplog.text
