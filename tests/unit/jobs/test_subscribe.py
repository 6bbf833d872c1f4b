"""The job ``subscribe``, as a process: stdout, files, checkpoints, signals and wrong input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.consumers import TABLES, Shop

HOME = Path(__file__).parents[3]
GROUP = {"partitions": 4, "url": "zookeeper://127.0.0.1:1/dblake"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a warehouse and a configuration of two outputs."""
    folder = tmp_path_factory.mktemp("shop")
    shop = Shop(folder)
    shop.move(3)
    shop.land(*TABLES)
    shop.reconcile()
    shop.fold()
    shop.move(2)
    shop.land()
    shop.reconcile()
    (folder / "shop.yaml").write_text(json.dumps({
        "warehouse": "./warehouse", "progress": "file:./progress",
        "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
                   "password": "${env:SHOP_PASSWORD}", "tables": ["public.*"]},
        "outputs": {
            "archive": {"type": "jsonl", "path": "./out/{table}.jsonl", "tables": ["public.left"]},
            "shared": {"type": "jsonl", "path": "./shared.jsonl", "group": GROUP},
            "hook": {"type": "http", "url": "http://127.0.0.1:1", "tls": "disable", "group": GROUP},
        },
    }), encoding="utf-8")
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HOME / "jobs/subscribe.py"), "--conf", str(folder / "shop.yaml"), *arguments],
        env=os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"}, cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )


def run(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    process = start(folder, *arguments)
    out, errors = process.communicate(timeout=120)
    return process.returncode, [json.loads(line) for line in out.splitlines()], errors


def test_stdout_has_bootstrap_then_changes(folder: Path) -> None:
    code, lines, errors = run(folder, "--output", "-", "--until-caught-up", "--checkpoint", "file:./stdout.checkpoint")
    assert code == 0, errors
    kinds = [line.get("control", line.get("op")) for line in lines]
    assert kinds[0] == "bootstrap_started" and kinds[-1] == "checkpoint"
    assert kinds.count("r") == 40
    assert all(kind in ("u", "d", "c", "checkpoint") for kind in kinds[kinds.index("bootstrap_finished") + 1 :])
    # Nothing is new.
    code, lines, _ = run(folder, "--output", "-", "--until-caught-up", "--checkpoint", "file:./stdout.checkpoint")
    assert (code, lines) == (0, [])


def test_output_writes_files_and_metrics(folder: Path) -> None:
    arguments = ("--output", "archive", "--until-caught-up", "--json", "--prometheus", "archive.prom")
    code, (facts,), errors = run(folder, *arguments)
    assert code == 0, errors
    rows = (folder / "out" / "public.left.jsonl").read_text(encoding="utf-8").splitlines()
    assert facts["events"] == sum("op" in json.loads(row) for row in rows)
    assert "dblake_output_events" in (folder / "archive.prom").read_text(encoding="utf-8")
    assert not (folder / "out" / "public.right.jsonl").exists()
    assert run(folder, *arguments)[1][0]["events"] == 0
    # A target that has lost its checkpoint begins again, whatever is stored elsewhere.
    shutil.rmtree(folder / "out")
    assert run(folder, *arguments)[1][0]["events"] == facts["events"]
    assert (folder / "out" / "public.left.jsonl").read_text(encoding="utf-8").splitlines() == rows


def test_sigterm_ends_with_0(folder: Path) -> None:
    process = start(folder, "--output", "-", "--from", "bootstrap")
    assert process.stdout is not None
    assert "bootstrap_started" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_closed_pipe_ends_run_without_event(folder: Path) -> None:
    """As ``subscribe --output - | head -2`` does: no event follows whose line would meet the closed pipe."""
    process = start(folder, "--output", "-", "--from", "now")
    assert process.stdout is not None and process.stderr is not None
    while "0 events" not in (line := process.stderr.readline()):
        assert line, "it ended before its reader did"
    process.stdout.close()
    try:
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["--output", "archiv"], 64, "there is no output archiv. Next: use - or one of archive, shared, hook"),
    (["--output", "-", "--from", "yesterday"], 64, "'yesterday' is no point: neither a position nor a time"),
    (["--output", "-", "--from", "1/999999999"], 78, "1/999999999 cannot be read: the earliest readable point is"),
    (["--output", "-", "--table", "orders"], 78, "tables: not a schema.table pattern: orders"),
    (["--output", "-", "--checkpoint", "redis://x"], 78, "checkpoint: must be file:PATH or zookeeper://"),
    (["--output", "shared"], 78, "outputs.shared.group: jsonl holds a single checkpoint in its target"),
    (["--output", "hook", "--from", "now"], 64, "--from does not apply to output hook: each partition of its group"),
    (["--output", "hook", "--checkpoint", "file:./x"], 64, "--checkpoint does not apply to output hook"),
])
def test_wrong_input_names_the_fault(folder: Path, arguments: list[str], code: int, message: str) -> None:
    found, _, errors = run(folder, *arguments, "--until-caught-up")
    assert (found, message in errors, "Traceback" in errors) == (code, True, False), errors
