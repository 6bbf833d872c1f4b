"""The job ``subscribe`` of one output as a process, killed at random moments or at failpoints."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2]
MAX_EVENTS = 3
"""Events after which a write begins."""


class KilledSubscriber:
    """The job on the warehouse and the progress in ``folder``; ``output`` is the output's configuration."""

    def __init__(self, folder: Path, name: str, output: dict[str, Any], seed: int = 0) -> None:
        self._random, self._name, self._conf = random.Random(seed), name, folder / "shop.yaml"
        self.kills = 0
        self._checkpoint = folder / "progress" / "shop" / "outputs" / f"{name}.json"
        self._conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "outputs": {name: output | {"max_events": MAX_EVENTS}},
            "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
                       "password": "${env:NONE}", "tables": ["public.*"]},
        }), encoding="utf-8")

    @property
    def checkpoint(self) -> str | None:
        """The stored checkpoint."""
        return self._checkpoint.read_text(encoding="utf-8") if self._checkpoint.exists() else None

    def run_and_kill(self, most_seconds: float) -> None:
        """Run it for a random time after its start-up."""
        process = self.start()
        try:
            process.wait(0.5 + self._random.random() * most_seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            self.kills += 1
        process.communicate()

    def kill_at(self, failpoint: str) -> None:
        """Run it until a failpoint, ``name:count``, kills it. Raises AssertionError if none does."""
        code, errors = _wait(self.start("--until-caught-up", failpoint=failpoint))
        assert code == -signal.SIGKILL, f"{failpoint}: {errors}"
        self.kills += 1

    def run(self) -> None:
        """Run it until it is caught up."""
        code, errors = _wait(self.start("--until-caught-up"))
        assert code == 0, errors

    def start(self, *options: str, failpoint: str = "") -> subprocess.Popen[str]:
        """Start it; the caller waits for its end."""
        command: Sequence[str] = (sys.executable, str(HOME / "jobs/subscribe.py"), "--conf", str(self._conf))
        return subprocess.Popen(
            [*command, "--output", self._name, *options],
            env=os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "DBLAKE_FAILPOINT": failpoint},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )


def _wait(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return a process's exit code and messages; end it if it takes too long."""
    try:
        _, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    return process.returncode, errors
