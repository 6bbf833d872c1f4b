"""Supervised processes: real ones, which end with each kind of exit code, ignore signals and leave children."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dblake.base.core.supervisor
from dblake.base.core.labeled_lines import label_line
from dblake.base.core.supervised_process import ProcessSpec
from dblake.base.core.supervisor import is_restarted, supervise

_RUNS = "import time; print('up', flush=True); time.sleep(60)"
_FAILS = "import sys; print('up', flush=True); sys.exit({})"
_IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_RUNS}"
_LEAVES_CHILD = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); raise SystemExit(75)"


class Lines:
    """The lines that parts wrote."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __call__(self, line: str) -> None:
        self._lines.append(line)

    def wait_for(self, count: int, prefix: str = "") -> list[str]:
        deadline = time.monotonic() + 20
        while len(found := [line for line in self._lines if line.startswith(prefix)]) < count:
            assert time.monotonic() < deadline, self._lines
            time.sleep(0.02)
        return found


def part(name: str, code: str) -> ProcessSpec:
    return ProcessSpec(name, [sys.executable, "-c", code])


@contextmanager
def supervised(*parts: ProcessSpec) -> Iterator[tuple[Lines, Callable[[], int]]]:
    """Supervise parts within the block; yield their lines, and a function that stops them and returns the result."""
    stop, lines, results = threading.Event(), Lines(), list[int]()
    thread = threading.Thread(target=lambda: results.append(supervise(parts, stop, lines)))

    def end() -> int:
        stop.set()
        thread.join(30)
        return results[0]

    thread.start()
    try:
        yield lines, end
    finally:
        end()


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_stop_ends_all_parts_with_0() -> None:
    with supervised(part("a", _RUNS), part("bb", _RUNS)) as (lines, end):
        lines.wait_for(2)
        assert sorted(lines.wait_for(2)) == ["a  | up", "bb | up"]
        began = time.monotonic()
        assert end() == 0
        assert time.monotonic() - began < 5


def test_part_that_ends_is_started_again() -> None:
    with supervised(part("a", _FAILS.format(75)), part("b", _RUNS)) as (lines, end):
        assert len(lines.wait_for(2, "a")) == 2
        assert len(lines.wait_for(1, "b")) == 1
        assert end() == 0


def test_part_that_is_killed_is_started_again() -> None:
    with supervised(part("a", f"import os; print(os.getpid(), flush=True); {_RUNS}")) as (lines, end):
        pid = int(lines.wait_for(1)[0].partition("| ")[2])
        os.kill(pid, signal.SIGKILL)
        assert lines.wait_for(3)[2] != f"a | {pid}"
        assert end() == 0


@pytest.mark.parametrize("code", [65, 78])
def test_final_exit_code_stops_all_parts(code: int) -> None:
    running = part("b", f"import os; print(os.getpid(), flush=True); {_RUNS}")
    stop, lines = threading.Event(), Lines()
    assert supervise([running, part("a", f"import time; time.sleep(0.2); {_FAILS.format(code)}")], stop, lines) == code
    assert is_gone(int(lines.wait_for(1, "b")[0].partition("| ")[2]))


def test_final_exit_code_of_lesser_part_ends_it_alone() -> None:
    lesser = ProcessSpec("a", [sys.executable, "-c", _FAILS.format(78)], is_essential=False)
    with supervised(lesser, part("b", _RUNS), part("c", _FAILS.format(75))) as (lines, end):
        assert len(lines.wait_for(2, "c")) == 2
        assert (len(lines.wait_for(1, "a")), len(lines.wait_for(1, "b")), lesser.final_code) == (1, 1, 78)
        assert end() == 0


@pytest.mark.parametrize(("codes", "expected"), [
    ([0, 0], 0), ([0, 75], 75), ([75, 78], 78), ([65, 75, 0], 65), ([-9, 0], 75),
])
def test_bounded_parts_end_once_with_worst_code(codes: list[int], expected: int) -> None:
    ends = {code: f"import os, sys; sys.exit({code}) if {code} >= 0 else os.kill(os.getpid(), 9)" for code in codes}
    parts = [
        ProcessSpec(str(number), [sys.executable, "-c", ends[code]], is_essential=False, is_bounded=True)
        for number, code in enumerate(codes)
    ]
    assert supervise(parts, threading.Event(), Lines()) == expected
    assert [part.final_code for part in parts] == codes


def test_part_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dblake.base.core.supervisor, "_STOP_SECONDS", 0.5)
    with supervised(part("a", _IGNORES_SIGTERM)) as (lines, end):
        lines.wait_for(1)
        began = time.monotonic()
        assert end() == 0
        assert time.monotonic() - began < 5


def test_child_that_a_part_left_is_killed() -> None:
    with supervised(part("a", _LEAVES_CHILD)) as (lines, end):
        child = int(lines.wait_for(1)[0].partition("| ")[2])
        assert is_gone(child)
        end()


def test_pause_doubles_up_to_a_minute() -> None:
    one = part("a", _RUNS)
    one._began = time.monotonic()
    assert [one.schedule_restart() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_pause_after_long_run_is_short_again() -> None:
    one = part("a", _RUNS)
    one._began = time.monotonic()
    assert [one.schedule_restart(), one.schedule_restart()] == [1, 2]
    one._began = time.monotonic() - 61
    assert one.schedule_restart() == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, True), (75, True), (-9, True), (137, True), (64, False), (65, False), (70, False), (78, False), (1, False)],
)
def test_restart_by_exit_code(code: int, expected: bool) -> None:
    assert is_restarted(code) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain", "run | plain"),
        ('{"level": "INFO"}', '{"part": "run", "level": "INFO"}'),
        ("{not json}", "run | {not json}"),
    ],
)
def test_line_is_labelled(line: str, expected: str) -> None:
    assert label_line(line, "run", "run | ") == expected
