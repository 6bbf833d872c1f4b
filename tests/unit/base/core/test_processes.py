"""Stopping a child process: real ones, each of which ignores another signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dblake.base.core.processes import defer_signals, end_with_parent, stop_process

_IGNORES = """
import signal, sys, time
signal.signal(getattr(signal, sys.argv[1]), signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
_PARENT = """
import subprocess, sys, time
from dblake.base.core.processes import end_with_parent
child = subprocess.Popen([*end_with_parent(), "sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""
_LEADER = "sleep 60 & echo $!; wait"
_LIB = str(Path(__file__).parents[4] / "lib")


def _child(signal_name: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", _IGNORES, signal_name], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as output:
        assert output.readline() == b"ready\n"
    return child


@pytest.mark.parametrize(
    ("ignored", "ended_by"), [("SIGINT", signal.SIGTERM), ("SIGTERM", signal.SIGKILL)],
)
def test_stop_process_ends_child_that_ignores_signal(ignored: str, ended_by: signal.Signals) -> None:
    child = _child(ignored)
    assert stop_process(child, 1.0)
    assert child.returncode == -ended_by


def test_stop_process_reports_child_that_survives() -> None:
    child = _child("SIGINT")
    assert not stop_process(child, 0.2, signals=(signal.SIGINT,))
    assert stop_process(child)


def test_stop_process_accepts_ended_child() -> None:
    child = subprocess.Popen(["true"])
    child.wait(10)
    assert stop_process(child)


def test_stop_process_ends_whole_group() -> None:
    leader = subprocess.Popen(["bash", "-c", _LEADER], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    with leader.stdout as output:
        member = int(output.readline())
    assert stop_process(leader, 5.0, group=True)
    assert _ended(member)


@pytest.mark.skipif(not end_with_parent(), reason="no setpriv on this machine")
def test_end_with_parent_ends_child_of_killed_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _LIB}
    )
    assert parent.stdout is not None
    with parent.stdout as output:
        child = int(output.readline())
    time.sleep(0.5)  # setpriv has yet to ask the kernel
    parent.kill()
    parent.wait(10)
    assert _ended(child)


def test_defer_signals_handles_signal_after_block() -> None:
    events: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: events.append("handled"))
    try:
        with defer_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            events.append("block ends")
        assert events == ["block ends", "handled"]
    finally:
        signal.signal(signal.SIGTERM, before)


def _ended(pid: int) -> bool:
    """Return whether a process ends within some seconds; a zombie that its new parent has yet to collect counts."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False
