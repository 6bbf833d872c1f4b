"""Traces of real jobs, as a recording OTLP endpoint receives them and OpenTelemetry's own messages decode them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.test_run import HOME, Shop
from tests.support.postgres import Database
from tests.support.recorder import Recorder
from tests.support.wheel import NO_JVM

Tree = dict[str, set[str]]


@dataclass(frozen=True)
class Span:
    """A received span; ``facts`` are its attributes without their prefix."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    facts: dict[str, Any]


class TracedShop:
    """The shop, with an output, whose jobs are traced to a recording collector."""

    def __init__(self, database: Database, folder: Path, recorder: Recorder) -> None:
        self.shop, self.recorder = Shop(database, folder), recorder
        settings = json.loads(self.shop.conf.read_text())
        settings["source"]["tables"] = ["public.t0"]
        settings["outputs"] = {"archive": {"type": "jsonl", "path": "./out.jsonl"}}
        self.shop.conf.write_text(json.dumps(settings), encoding="utf-8")
        self.environment = NO_JVM | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": recorder.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-token=the-token",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }

    def run(self, job: str, *arguments: str, **variables: str) -> list[Span]:
        """Run a job and return the spans that the collector received from it."""
        before = len(self.recorder.requests)
        self.shop.run(job, *arguments, environment=self.environment | variables)
        return self.spans(before)

    def spans(self, before: int = 0) -> list[Span]:
        found = []
        for request in self.recorder.requests[before:]:
            assert (request.path, request.headers["x-token"]) == ("/v1/traces", "the-token")
            message = ExportTraceServiceRequest.FromString(request.body)
            found += [
                Span(span.name, span.trace_id, span.span_id, span.parent_span_id, {
                    a.key.removeprefix("dblake."): getattr(a.value, str(a.value.WhichOneof("value")))
                    for a in span.attributes
                })
                for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans
            ]
        return found


def tree(spans: Sequence[Span]) -> Tree:
    """Return the names of each span's children by its name; those of roots by an empty name."""
    by_id = {span.id: span.name for span in spans}
    found: Tree = {}
    for span in spans:
        found.setdefault(by_id.get(span.parent, ""), set()).add(span.name)
    return found


def facts(spans: Sequence[Span], name: str) -> dict[str, Any]:
    return next(span.facts for span in spans if span.name == name)


@pytest.fixture
def traced(database: Database, tmp_path: Path) -> Iterator[TracedShop]:
    with Recorder() as recorder:
        yield TracedShop(database, tmp_path, recorder)


def test_traces_of_bounded_jobs_have_their_stages(traced: TracedShop) -> None:
    """One trace a run, with counts and positions, and no value of a row."""
    traced.shop.database.run("INSERT INTO t0 SELECT n, 'secret value' FROM generate_series(1, 50) n")
    traced.shop.run("dump", "start", "--table", "public.t0")
    captured = traced.run("capture", "--until-caught-up")
    assert tree(captured) == {
        "": {"dblake capture"}, "dblake capture": {"capture.open", "capture.chunk", "capture.commit"},
    }
    chunk = facts(captured, "capture.chunk")
    assert (chunk["table"], chunk["rows"]) == ("public.t0", 50)
    assert sum(span.facts["rows"] for span in captured if span.name == "capture.commit") > 50

    ran = traced.run("run", TRACEPARENT="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert tree(ran) == {
        "": {"dblake run"}, "dblake run": {"reconcile", "state"},
        "reconcile": {"reconcile.plan", "reconcile.join", "reconcile.write", "reconcile.commit"},
        "reconcile.write": {"reconcile.decode"}, "state": {"state.plan", "state.fold", "state.frontier"},
        "state.fold": {"state.commit"},
    }
    assert {span.trace.hex() for span in ran} == {"0af7651916cd43dd8448eb211c80319c"}
    assert (facts(ran, "dblake run")["source"], facts(ran, "state")["rows"]) == ("shop", 100)

    delivered = traced.run("subscribe", "--output", "archive", "--until-caught-up")
    assert tree(delivered) == {
        "": {"dblake subscribe"}, "dblake subscribe": {"output"}, "output": {"output.read", "output.deliver"},
    }
    assert facts(delivered, "output.deliver")["events"] == 50
    assert not any(b"secret value" in request.body for request in traced.recorder.requests)


def test_traces_of_job_that_runs_on_end_with_each_cycle(traced: TracedShop) -> None:
    """Each commit is a trace of its own, received while the job runs."""
    process = subprocess.Popen(
        [sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(traced.shop.conf)],
        stderr=subprocess.PIPE, text=True, env=traced.shop.environment | traced.environment,
    )
    deadline = time.monotonic() + 60
    while len([s for s in traced.spans() if s.name == "capture.commit"]) < 2 and time.monotonic() < deadline:
        traced.shop.database.run("INSERT INTO t0 SELECT coalesce(max(id), 0) + 1, 'v' FROM t0")
        time.sleep(0.5)
    process.terminate()
    _, printed = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    spans = traced.spans()
    assert tree(spans) == {"": {"capture.open", "capture.commit"}}
    assert len({span.trace for span in spans}) == len(spans) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9"], ids=["rejects", "is gone"])
def test_trace_collector_that_fails_is_one_warning(traced: TracedShop, url: str | None) -> None:
    traced.recorder.status = 400
    variables = os.environ | traced.shop.environment | traced.environment
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(traced.shop.conf), "--until-caught-up"],
        capture_output=True, text=True, timeout=60, check=False,
        env=variables | ({"OTEL_EXPORTER_OTLP_ENDPOINT": url} if url else {}),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("traces are lost") == 1
    assert "the-token" not in done.stderr
    assert time.monotonic() - began < 25


@pytest.mark.slow
def test_traces_are_off_without_variables(traced: TracedShop) -> None:
    for variables in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert traced.run("capture", "--until-caught-up", **variables) == []
