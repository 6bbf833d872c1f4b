"""Lineage of real jobs: PostgreSQL → capture → run → an output, as a recording OpenLineage server receives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.e2e.test_run import HOME, Shop
from tests.support.openlineage import validate_event
from tests.support.postgres import Database
from tests.support.recorder import Recorder
from tests.support.wheel import NO_JVM

PARENT = "0197e3d4-7c60-7a3e-8b8f-0f6f3c1a2b3c"
MASKS = {"public.t1": {"v": "hash"}, "public.t2": {"v": {"truncate": 3}}, "public.t3": {"v": "drop"}}


class ReportedShop:
    """The shop, with masks and an output, whose jobs report to a recording server."""

    def __init__(self, database: Database, folder: Path, recorder: Recorder) -> None:
        self.shop, self.recorder = Shop(database, folder), recorder
        settings = json.loads(self.shop.conf.read_text())
        settings["source"]["tables"] = [f"public.t{number}" for number in range(4)]
        settings["mask"] = {"key": "${env:MASK_KEY}", "tables": MASKS}
        settings["outputs"] = {
            "archive": {"type": "jsonl", "path": "./out/{table}.jsonl", "columns": {"public.t1": ["id"]}},
        }
        self.shop.conf.write_text(json.dumps(settings), encoding="utf-8")
        self.environment = NO_JVM | {
            "OPENLINEAGE_URL": recorder.url, "OPENLINEAGE_API_KEY": "the-key", "OPENLINEAGE_NAMESPACE": "prod",
            "MASK_KEY": "0123456789abcdef0123456789abcdef",
        }
        self.database = f"postgres://127.0.0.1:{database.server.port}"

    def run(self, job: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
        """Run a job and return the events that the server received from it."""
        before = len(self.recorder.requests)
        self.shop.run(job, *arguments, environment=self.environment | variables)
        return [json.loads(request.body) for request in self.recorder.requests[before:]]

    def table(self, *names: str) -> tuple[str, str]:
        return "file", "/".join((self.shop.paths.root, *names))


@pytest.fixture
def reported(database: Database, tmp_path: Path) -> Iterator[ReportedShop]:
    with Recorder() as recorder:
        yield ReportedShop(database, tmp_path, recorder)


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(dataset["namespace"], dataset["name"]) for dataset in datasets]


def test_lineage_of_path_names_datasets_and_columns(reported: ReportedShop) -> None:
    reported.shop.database.run(*(f"INSERT INTO t{n} VALUES (1, 'secret value')" for n in range(4)))
    source = [(reported.database, f"{reported.shop.database.name}.public.t{n}") for n in range(4)]
    states = [reported.table("state", "public", f"t{n}") for n in range(4)]
    landing, events = reported.table("landing"), reported.table("events")

    captured = reported.run("capture", "--until-caught-up")
    ran = reported.run(
        "run", OPENLINEAGE_PARENT_ID=f"airflow://prod/dblake_shop.run/{PARENT}",
        OPENLINEAGE_ROOT_PARENT_ID=f"airflow://prod/dblake_shop/{PARENT}",
    )
    delivered = reported.run("subscribe", "--output", "archive", "--until-caught-up")

    flows = {
        "dblake.shop.capture": (captured, source, [landing]),
        "dblake.shop.run": (ran, [landing], [events, *states]),
        "dblake.shop.subscribe.archive": (
            delivered, [events, *states],
            [("file", str(reported.shop.conf.parent / f"out/public.t{n}.jsonl")) for n in range(4)],
        ),
    }
    for job, (received, inputs, outputs) in flows.items():
        assert [event["eventType"] for event in received] == ["START", "COMPLETE"]
        assert len({event["run"]["runId"] for event in received}) == 1
        assert UUID(received[0]["run"]["runId"])
        assert (received[-1]["job"]["namespace"], received[-1]["job"]["name"]) == ("prod", job)
        assert (names(received[-1]["inputs"]), names(received[-1]["outputs"])) == (inputs, outputs)
    assert "parent" not in captured[0]["run"]["facets"]
    parent = ran[0]["run"]["facets"]["parent"]
    assert [parent["run"]["runId"], parent["job"]["namespace"], parent["job"]["name"]] == [
        PARENT, "airflow://prod", "dblake_shop.run",
    ]
    assert parent["root"]["job"]["name"] == "dblake_shop"

    schema = captured[-1]["inputs"][3]["facets"]["schema"]["fields"]
    assert [(field["name"], field["type"]) for field in schema] == [("id", "integer"), ("v", "text")]
    found = {}
    for number, state in enumerate(ran[-1]["outputs"][1:]):
        for column, field in state["facets"]["columnLineage"]["fields"].items():
            [origin] = field["inputFields"]
            [change] = origin["transformations"]
            assert (origin["namespace"], origin["name"], origin["field"]) == (*source[number], column)
            found[f"t{number}.{column}"] = (change["type"], change["subtype"], change["masking"])
    plain, masked = ("DIRECT", "IDENTITY", False), ("DIRECT", "TRANSFORMATION", True)
    assert found == {
        "t0.id": plain, "t0.v": plain, "t1.id": plain, "t1.v": masked, "t2.id": plain, "t2.v": masked, "t3.id": plain,
    }
    lineage = {name: list(target["facets"]["columnLineage"]["fields"]) for (_, name), target in
               zip(names(delivered[-1]["outputs"]), delivered[-1]["outputs"], strict=True)}
    assert [columns for _, columns in sorted(lineage.items())] == [["id", "v"], ["id"], ["id", "v"], ["id"]]
    assert {request.headers["Authorization"] for request in reported.recorder.requests} == {"Bearer the-key"}
    assert not any(b"secret value" in request.body for request in reported.recorder.requests)


def test_lineage_events_are_valid_by_their_schemas(reported: ReportedShop) -> None:
    """It is skipped where the schemas cannot be had: nothing else is part of it."""
    reported.shop.database.run(*(f"INSERT INTO t{n} VALUES (1, 'value')" for n in range(4)))
    events = [
        *reported.run("capture", "--until-caught-up"),
        *reported.run("run", OPENLINEAGE_PARENT_ID=f"airflow://p/d.run/{PARENT}"),
        *reported.run("subscribe", "--output", "archive", "--until-caught-up"), *fail_capture(reported),
    ]
    assert sum(map(validate_event, events)) > 35


def fail_capture(reported: ReportedShop) -> list[dict[str, Any]]:
    """Run capture with a wrong password; return its events, the last one with the message that it has printed."""
    before = len(reported.recorder.requests)
    variables = reported.shop.environment | reported.environment | {"SHOP_PASSWORD": "wrong-password"}
    done = subprocess.run(
        [sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(reported.shop.conf), "--until-caught-up"],
        capture_output=True, text=True, timeout=60, check=False, env=variables,
    )
    assert done.returncode == 78, done.stderr
    received = [json.loads(request.body) for request in reported.recorder.requests[before:]]
    message = received[-1]["run"]["facets"]["errorMessage"]["message"]
    assert message and message in done.stderr
    return received


def test_lineage_of_failed_job_has_its_message(reported: ReportedShop) -> None:
    """The message is the job's own, without secrets; the exit code stays the job's."""
    start, failed = fail_capture(reported)
    assert (start["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert not any(b"wrong-password" in request.body for request in reported.recorder.requests)


@pytest.mark.slow
def test_lineage_of_stopped_job_is_aborted(reported: ReportedShop) -> None:
    """A job that runs on is of type STREAMING, and ends with ABORT when it is stopped."""
    process = subprocess.Popen(
        [sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(reported.shop.conf)],
        stderr=subprocess.PIPE, text=True, env=reported.shop.environment | reported.environment,
    )
    deadline = time.monotonic() + 30
    while not reported.recorder.requests and time.monotonic() < deadline:
        time.sleep(0.1)
    process.terminate()
    _, printed = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    received = [json.loads(request.body) for request in reported.recorder.requests]
    assert [event["eventType"] for event in received] == ["START", "ABORT"]
    assert received[0]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"


@pytest.mark.slow
@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9"], ids=["rejects", "is gone"])
def test_lineage_server_that_fails_is_one_warning(reported: ReportedShop, url: str | None) -> None:
    reported.recorder.status = 500
    variables = os.environ | reported.shop.environment | reported.environment
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(reported.shop.conf), "--until-caught-up"],
        capture_output=True, text=True, timeout=60, check=False,
        env=variables | ({"OPENLINEAGE_URL": url} if url else {}),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("OpenLineage events are not delivered") == 1
    assert "the-key" not in done.stderr
    assert time.monotonic() - began < 25


@pytest.mark.slow
def test_lineage_is_off_without_variables(reported: ReportedShop) -> None:
    """Nothing of the client is imported then."""
    for variables in ({"OPENLINEAGE_DISABLED": "true"}, {"OPENLINEAGE_URL": ""}):
        assert reported.run("capture", "--until-caught-up", **variables) == []
