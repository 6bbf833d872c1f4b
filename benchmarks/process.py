"""Runs one program to its end: how long it took, how much CPU, how much memory at its peak."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """``peak_mb`` is VmHWM: the most memory the process ever had resident at once."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    output: str


def run(command: Sequence[str], environment: Mapping[str, str], *, null: bool = False) -> ProcessResult:
    """Raises RuntimeError if the program fails. With ``null`` its output goes nowhere."""
    with TemporaryFile() as kept, TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if null else kept, stderr=errors,
        )
        peak = 0.0
        # Not the usage's ru_maxrss: that starts with what the parent weighed when it forked.
        while True:
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            peak = max(peak, _peak_mb(process.pid))
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{Path(command[0]).name} failed: {errors.read().decode(errors='replace')[-2000:]}")
        kept.seek(0)
        return ProcessResult(seconds, usage.ru_utime + usage.ru_stime, peak, kept.read().decode())


def _peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) / 1024 if found else 0.0
