"""Stops a job at a moment of its start, run or end, as a supervisor or Ctrl-C does, and reports how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[2]
_COUNT = 10
_LEFT_SECONDS = 10.0
"""How long a process may outlive the job that started it."""
_TRACES = ("Traceback", "\tat ", "Exception in thread", "Exception ignored")


@dataclass(frozen=True)
class Ending:
    """How a job ended: its exit code, seconds from the signal, stderr, and the processes that it left behind."""

    delay: float
    number: signal.Signals
    code: int
    seconds: float
    stderr: str
    left: Sequence[str]

    def faults(self, codes: Sequence[int]) -> list[str]:
        """Return what is wrong with it; empty if it ended with one of the codes and left nothing."""
        found = [] if self.code in codes else [f"exit code {self.code}"]
        found += [f"{trace.strip()} in stderr" for trace in _TRACES if trace in self.stderr]
        found += [f"left {command}" for command in self.left]
        what = f"{self.number.name} after {self.delay:.2f} s: {', '.join(found)}"
        return [f"{what}\n{self.stderr[-3000:]}"] if found else []


def moments(seconds: float) -> list[float]:
    """Return the moments at which to stop a job that runs for some seconds: in its start, spread, and at its end."""
    early = [0.03, 0.06, 0.1, 0.3]
    later = max(_COUNT - len(early), 1)
    return early + [seconds * number / later for number in range(1, later + 1)]


def start(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a job by the script, in a session of its own, so that its processes can be found."""
    return subprocess.Popen(
        [str(HOME / "spark-submit.sh"), *arguments], env={**os.environ, **(environment or {})}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )


def stop_at(
    delay: float, number: signal.Signals, arguments: Sequence[str], environment: Mapping[str, str] | None = None,
    limit: float = 120.0,
) -> Ending:
    """Start a job and send it a signal after a delay: SIGINT to its process group, as a terminal does."""
    process = start(arguments, environment)
    _wait_for_script(process)
    with ThreadPoolExecutor(1) as pool:
        output = pool.submit(process.communicate, None, delay + limit)
        with suppress(subprocess.TimeoutExpired):
            # Not process.wait, which would wait for the lock that communicate holds.
            time.sleep(delay)
        began = time.monotonic()
        with suppress(ProcessLookupError):
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        try:
            _, stderr = output.result()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stderr = f"it did not end within {limit} s"
        seconds = time.monotonic() - began
    left = _left(process.pid)
    for pid in _members(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Ending(delay, number, process.wait(10), seconds, stderr, left)


def _wait_for_script(process: subprocess.Popen[str]) -> None:
    """Wait until the script handles SIGTERM: before that, no program of ours runs."""
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        caught = int(status.get("SigCgt", "0"), 16) | int(status.get("SigBlk", "0"), 16)
        if caught >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


def _left(session: int) -> list[str]:
    deadline = time.monotonic() + _LEFT_SECONDS
    while (members := _members(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [command[:200] for command in members.values()]


def _members(session: int) -> dict[int, str]:
    """Return the command lines of a session's processes that have not ended."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if os.getsid(pid) == session and state != "Z":
                found[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found
