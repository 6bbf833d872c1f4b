"""Events of a run whose lake is slow to read, as a recording OpenLineage server receives them."""

from __future__ import annotations

import json
import threading
import time

import pytest

from dblake.operate.lineage.model import Dataset, DatasetName, Flow
from dblake.operate.lineage.run import LineageRun
from tests.support.recorder import Recorder


def test_end_is_sent_while_the_lake_is_slow_to_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The event has the datasets known so far, and the job waits less than for a server that is gone."""
    released = threading.Event()

    def read_flow() -> Flow:
        released.wait(60)
        return Flow()

    with Recorder() as recorder:
        monkeypatch.setenv("OPENLINEAGE_URL", recorder.url)
        run = LineageRun("job", read_flow, runs_on=False)
        run.start()
        began = time.monotonic()
        run.end(None, is_stopped=False)
        waited = time.monotonic() - began
        received = [json.loads(request.body) for request in recorder.requests]
    released.set()
    assert [event["eventType"] for event in received] == ["START", "COMPLETE"]
    assert waited < 4.5 and "OpenLineage" not in caplog.text


def test_end_has_the_datasets_as_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder() as recorder:
        monkeypatch.setenv("OPENLINEAGE_URL", recorder.url)
        run = LineageRun("job", lambda: Flow([Dataset(DatasetName("file", "/t"))]), runs_on=False)
        run.start()
        run.end(None, is_stopped=False)
        received = [json.loads(request.body) for request in recorder.requests]
    assert [[dataset["name"] for dataset in event["inputs"]] for event in received] == [[], ["/t"]]
