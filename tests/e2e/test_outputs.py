"""``subscribe --all`` as operators run it: every output a process, restarts, one that fails for good, one signal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dblake.base.core.errors import DblakeError
from jobs.subscribe import subscribe
from tests.support.output_lake import OutputLake, started_parts, wait_for
from tests.support.sql_places import Place
from tests.support.web_service import Service, serve_requests

BROKEN = {"type": "http", "url": "http://127.0.0.1:1", "tls": "disable",
          "headers": {"Authorization": "${env:NO_TOKEN}"}}


@pytest.fixture
def service() -> Iterator[Service]:
    yield from serve_requests()


@pytest.mark.timeout(600)
def test_all_outputs_run_beside_one_that_fails(
    tmp_path: Path, on_postgres: Place, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, a database and a service get everything, also after a kill; the misconfigured one is named."""
    log, file = tmp_path / "all.log", tmp_path / "t.jsonl"
    monkeypatch.setenv("COPY_PASSWORD", on_postgres.password)
    lake = OutputLake(tmp_path, {
        "archive": {"type": "jsonl", "path": "./t.jsonl", "tables": ["public.t"]},
        "copy": {"type": "sql", "url": on_postgres.url, "password": "${env:COPY_PASSWORD}", "tls": "disable"},
        "broken": BROKEN,
        "hook": {"type": "http", "url": service.url, "tls": "disable", "tables": ["public.t"]},
    }, service)

    def has_delivered(version: str) -> bool:
        row = {"id": "1", "v": version}
        written = [json.loads(line).get("after") for line in file.read_text().splitlines()] if file.exists() else []
        sent = [record.get("after") for _, records in service.requests for record in records]
        (exists,) = on_postgres.rows("SELECT to_regclass('public.t') IS NOT NULL")
        copied = on_postgres.rows("SELECT v FROM public.t WHERE id = '1'") if exists[0] else []
        return row in written and row in sent and copied == [(version,)]

    def states() -> dict[str, str]:
        return {one["name"]: one["state"] for one in lake.status()["outputs"]}

    with lake.running(log, "--all") as all_outputs:
        wait_for(lambda: has_delivered("a"))
        wait_for(lambda: "output broken ended with exit code 78 and stays ended" in log.read_text())
        os.kill(started_parts(log)["output copy"], signal.SIGKILL)
        lake.change()
        wait_for(lambda: has_delivered("2"))
        assert "output copy ended by SIGKILL; it starts again in 1 s" in log.read_text()
        assert states() == {"archive": "running", "copy": "running", "broken": "failed", "hook": "running"}
        assert [one["output"] for one in lake.status()["problems"] if "output" in one] == ["broken"]
        parts = started_parts(log)
        all_outputs.send_signal(signal.SIGTERM)
        assert all_outputs.wait(30) == 0, log.read_text()
        assert [pid for pid in parts.values() if Path(f"/proc/{pid}").exists()] == []
    assert states() == {"archive": "stopped", "copy": "stopped", "broken": "failed", "hook": "stopped"}


@pytest.mark.parametrize(("options", "code", "message"), [
    (["--all", "--output", "archive"], 64, "give either --output or --all"),
    ([], 64, "give either --output or --all"),
    (["--all", "--from", "now"], 64, "--all takes no option but --until-caught-up"),
])
def test_all_with_other_options_is_rejected(tmp_path: Path, options: list[str], code: int, message: str) -> None:
    lake = OutputLake(tmp_path, {"archive": {"type": "jsonl", "path": "./t.jsonl"}})
    result = CliRunner().invoke(subscribe, ["--conf", str(lake.conf), *options])
    assert isinstance(result.exception, DblakeError)
    assert (result.exception.exit_code, message in result.exception.what) == (code, True)


def test_bounded_run_of_all_ends_with_worst_code(tmp_path: Path) -> None:
    lake = OutputLake(tmp_path, {"archive": {"type": "jsonl", "path": "./t.jsonl"}, "broken": BROKEN})
    log = tmp_path / "all.log"
    with lake.running(log, "--all", "--until-caught-up") as all_outputs:
        assert all_outputs.wait(180) == 78, log.read_text()
    assert lake.output("archive")["lag_seconds"] == 0.0
    assert "starts again" not in log.read_text()
