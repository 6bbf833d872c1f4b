"""The units of conf/systemd: valid for systemd, with the exit codes that a restart cannot correct."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dblake.base.core.errors import ExitCode

HOME = Path(__file__).parents[2]
UNITS = sorted((HOME / "conf" / "systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_units_are_valid_for_systemd(tmp_path: Path) -> None:
    """The installed place is replaced by this checkout: the program must exist."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/opt/dblake/", f"{HOME}/")
        (tmp_path / unit.name.replace("@", "@shop")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(map(str, tmp_path.iterdir()))], capture_output=True,
        text=True, timeout=60, check=False,
    )
    assert [line for line in done.stderr.splitlines() if "dblake" in line] == []


def test_services_run_jobs_that_exist() -> None:
    jobs = [re.findall(r"^ExecStart=/opt/dblake/dblake (\w+) ", unit.read_text(), re.MULTILINE) for unit in SERVICES]
    assert [(HOME / "jobs" / f"{job}.py").is_file() for (job,) in jobs] == [True] * len(SERVICES)


def test_restarted_services_stop_at_final_exit_codes() -> None:
    final = f"RestartPreventExitStatus={ExitCode.USAGE:d} {ExitCode.CONFIGURATION:d}"
    restarted = [unit.read_text() for unit in SERVICES if "Restart=" in unit.read_text()]
    assert len(restarted) == 2 and all(final in text for text in restarted)
