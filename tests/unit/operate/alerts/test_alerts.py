"""Alerts: each problem once when it begins and once when it ends, whatever a hook does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dblake.base.core.errors import ConfigError, OutputUnavailable, UsageError
from dblake.config import load_config
from dblake.ingest.capture.progress import open_progress
from dblake.operate.alerts.announce import announce
from dblake.operate.alerts.hooks import CommandHook, Webhook
from dblake.operate.status.page_server import PageServer
from dblake.operate.status.problem import problem
from jobs.status import status
from tests.support.output_lake import OutputLake, wait_for
from tests.support.web_service import Service, serve_requests

LATE = problem("output_late", None, "output bus: it lags by 61 s", "check the target") | {"output": "bus"}
FAILED = problem("dump_failed", "public.t", "the server cannot read it", "dump start --table 'public.t'")


class Recorder:
    """A hook that keeps what it is called with, and fails as long as ``is_broken``."""

    def __init__(self, name: str = "webhook") -> None:
        self.name, self.is_broken = name, False
        self.calls: list[tuple[list[str], list[str]]] = []

    def call(self, document: Mapping[str, Any]) -> None:
        if self.is_broken:
            raise OutputUnavailable("away")
        self.calls.append(([one["code"] for one in document["begun"]], [one["code"] for one in document["ended"]]))


@pytest.fixture
def service() -> Iterator[Service]:
    yield from serve_requests()


def test_problem_is_announced_once_and_its_end_once(tmp_path: Path) -> None:
    store, hook = open_progress(f"file:{tmp_path}", "shop"), Recorder()
    later = LATE | {"detail": "output bus: it lags by 3 min"}
    for problems in ([], [LATE], [later], [later, FAILED], [FAILED], [FAILED], [], [LATE]):
        assert announce("shop", problems, [hook], store) == []
    assert hook.calls == [
        (["output_late"], []), (["dump_failed"], []), ([], ["output_late"]), ([], ["dump_failed"]),
        (["output_late"], []),
    ]


def test_failed_hook_is_called_again_and_others_are_not(tmp_path: Path) -> None:
    store, broken, other = open_progress(f"file:{tmp_path}", "shop"), Recorder("webhook"), Recorder("command")
    broken.is_broken = True
    assert [error.what for error in announce("shop", [LATE], [broken, other], store)] == ["away"]
    broken.is_broken = False
    announce("shop", [LATE, FAILED], [broken, other], store)
    assert broken.calls == [(["output_late", "dump_failed"], [])]
    assert other.calls == [(["output_late"], []), (["dump_failed"], [])]


def test_problem_that_ended_before_success_is_not_announced(tmp_path: Path) -> None:
    store, hook = open_progress(f"file:{tmp_path}", "shop"), Recorder()
    hook.is_broken = True
    announce("shop", [LATE], [hook], store)
    hook.is_broken = False
    announce("shop", [], [hook], store)
    assert hook.calls == []


def test_problem_of_many_tables_is_one(tmp_path: Path) -> None:
    """A lost database concerns all of its tables: one problem, and a record that stays small."""
    store, hook = open_progress(f"file:{tmp_path}", "shop"), Recorder()
    many = [FAILED | {"table": f"public.t{n}", "detail": "x" * 10_000} for n in range(2000)]
    for problems in (many, [LATE, *many[:1000]], [LATE, *many[:2]], [LATE]):
        announce("shop", problems, [hook], store)
    assert hook.calls == [
        (["dump_failed"], []), (["output_late"], []), ([], ["dump_failed"] * 3),
    ]
    announce("shop", [*many[:50], LATE], [hook], store)
    assert len(json.dumps(store.read("alerts"))) < 10_000


def test_problem_of_more_or_fewer_tables_does_not_end(tmp_path: Path) -> None:
    """Tables that become a group, or are few again, are announced as ended when they are, and new ones as begun."""
    store, hook = open_progress(f"file:{tmp_path}", "shop"), Recorder()
    many = [FAILED | {"table": f"public.t{n}"} for n in range(99)]
    code = ["dump_failed"]
    for problems, call in (
        (many[:50], (code * 50, [])), (many[:51], (code, [])), (many[:50], None), (many[:51], None),
        (many[2:52], ([], code * 2)), (many[2:51], ([], code)), (many[2:52], (code, [])),
        (many[49:99], (code * 47, code * 47)), ([], ([], code * 51)), (many[:1], (code, [])),
    ):
        hook.calls.clear()
        announce("shop", problems, [hook], store)
        assert hook.calls == ([call] if call else [])
    # A group, then few of its tables; a hook that fails in between changes nothing.
    announce("shop", many, [hook], store)
    hook.calls.clear()
    announce("shop", many[:2], [hook], store)
    hook.is_broken = True
    announce("shop", many[:3], [hook], store)
    hook.is_broken = False
    announce("shop", many[:3], [hook], store)
    assert hook.calls == [(code, [])]


def test_webhook_gets_problems_with_text(tmp_path: Path, service: Service) -> None:
    announce("shop", [LATE], [Webhook(service.url, 5)], open_progress(f"file:{tmp_path}", "shop"))
    ((headers, (document,)),) = service.requests
    assert headers["Content-Type"] == "application/json"
    assert document["text"].splitlines() == [
        "shop: problems that began: 1, ended: 0",
        "began: output_late bus: output bus: it lags by 61 s. Next: check the target",
    ]
    assert document["begun"] == [LATE | {"since": document["at"]}]


@pytest.mark.parametrize("status_code", [302, 404, 500])
def test_webhook_that_answers_otherwise_has_failed(service: Service, status_code: int) -> None:
    service.answers = [(status_code, {})]
    with pytest.raises(OutputUnavailable, match=f"status {status_code}"):
        Webhook(service.url, 5).call({})


def test_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "child"
    began = time.monotonic()
    with pytest.raises(OutputUnavailable, match="sh did not end within 2 s"):
        CommandHook(f"sh -c 'sleep 600 & echo $! > {file}; sleep 600'", 2).call({})
    assert time.monotonic() - began < 60
    wait_for(lambda: not _is_running(int(file.read_text())))


def _is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(("command", "kind", "message"), [
    ("/no/such/program --x", ConfigError, "alerts.command: /no/such/program cannot be run"),
    ("false", OutputUnavailable, "alerts.command: false ended with 1"),
])
def test_command_that_fails_is_named(command: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        CommandHook(command, 5).call({})


def test_status_alerts_until_stopped(tmp_path: Path) -> None:
    """As ``up`` runs it: an output that has never run is announced, and its end once it has delivered."""
    file = tmp_path / "alerts.jsonl"
    program = f"import sys; open('{file}', 'a').write(sys.stdin.read() + chr(10))"
    lake = OutputLake(tmp_path, {"archive": {"type": "jsonl", "path": "./t.jsonl"}}, alerts={
        "command": f'{sys.executable} -c "{program}"'})

    def alerts() -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    with lake.running(tmp_path / "log", "--alert", "--every", "1", "--offline", job="status") as process:
        wait_for(alerts)
        lake.deliver("archive")
        wait_for(lambda: len(alerts()) == 2)
        process.terminate()
        assert process.wait(30) == 0
    (first, second) = alerts()
    assert "output_stopped" in [one["code"] for one in first["begun"]]
    assert [(one["code"], one["output"]) for one in second["ended"]] == [("output_stopped", "archive")]
    assert (tmp_path / "log").read_text() == ""


def test_port_in_use_ends_no_alerts(tmp_path: Path) -> None:
    """``up`` runs alerts and metrics in one process. Metrics alone end with 64."""
    file, log = tmp_path / "alerts", tmp_path / "log"
    lake = OutputLake(tmp_path, {"archive": {"type": "jsonl", "path": "./t.jsonl"}}, alerts={
        "command": f"touch {file}"})
    with PageServer("127.0.0.1", 0) as server:
        metrics = ["--offline", "--metrics-port", str(server.port)]
        with lake.running(log, *metrics, "--alert", job="status") as process:
            wait_for(file.exists)
            process.terminate()
            assert process.wait(30) == 0
        assert f"port {server.port} of 127.0.0.1 cannot be opened" in log.read_text()
        result = CliRunner().invoke(status, ["--conf", str(lake.conf), *metrics])
        assert isinstance(result.exception, UsageError)


def test_status_with_failed_hook_ends_with_75(tmp_path: Path) -> None:
    lake = OutputLake(tmp_path, {"archive": {"type": "jsonl", "path": "./t.jsonl"}}, alerts={"command": "false"})
    arguments = ["--conf", str(lake.conf), "--offline", "--json", "--alert"]
    result = CliRunner().invoke(status, arguments, standalone_mode=False)
    assert (result.return_value, json.loads(result.stdout)["source"]) == (75, "shop")


def test_alert_without_hook_is_rejected(tmp_path: Path) -> None:
    lake = OutputLake(tmp_path, {})
    result = CliRunner().invoke(status, ["--conf", str(lake.conf), "--offline", "--alert"])
    assert isinstance(result.exception, ConfigError) and "there is no hook" in result.exception.what


@pytest.mark.parametrize(("webhook", "is_valid"), [
    ("https://example.com/hook", True), ("${env:ALERT_URL}", True), ("example.com", False), ("ftp://x", False),
])
def test_webhook_is_address_or_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: str, is_valid: bool
) -> None:
    monkeypatch.setenv("ALERT_URL", "https://example.com/secret")
    lake = OutputLake(tmp_path, {}, alerts={"webhook": webhook})
    if is_valid:
        assert str(load_config(lake.conf).alerts.read_webhook()).startswith("https://example.com/")
        return
    with pytest.raises(ConfigError, match="must be https:// or http://"):
        load_config(lake.conf)
