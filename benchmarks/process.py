"""Run a program to its end and measure its time, CPU time and peak memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The measurements of a process and its stdout. ``peak_mb`` is VmHWM, the peak resident memory."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    output: str


def run(command: Sequence[str], environment: Mapping[str, str], *, null: bool = False) -> ProcessResult:
    """Run a program and return its measurements; ``null`` discards its output. Raises RuntimeError if it fails."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if null else output, stderr=errors,
        )
        peak = 0.0
        # Not ru_maxrss, which starts at the parent's size at the fork.
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            peak = max(peak, _peak_mb(process.pid))
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{Path(command[0]).name} failed: {errors.read().decode(errors='replace')[-2000:]}")
        output.seek(0)
        return ProcessResult(seconds, usage.ru_utime + usage.ru_stime, peak, output.read().decode())


def _peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peaks[0]) / 1024 if peaks else 0.0
