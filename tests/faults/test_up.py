"""``up`` under load, with capture, run and Spark's JVM killed in turn: everything resumes, nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.support.rig import HOME, PACE, Rig, rig_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_ROUNDS = int(os.environ.get("DBLAKE_UP_ROUNDS", "2"))
_PAUSE_SECONDS = 8.0


def newest_process(log: Path, job: str) -> int:
    """Return the process that was last started as a job."""
    started = re.findall(rf"started {job}, process (\d+)", log.read_text())
    return int(started[-1]) if started else 0


def jvms_of(pid: int) -> list[int]:
    """Return the JVMs in a part's process group."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == pid and "java" in (entry / "comm").read_text():
                found.append(int(entry.name))
        except (OSError, ProcessLookupError):
            continue
    return found


def wait_for_restart(log: Path, job: str, before: int) -> None:
    deadline = time.monotonic() + 120
    while newest_process(log, job) == before:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def kill_part(log: Path, job: str) -> None:
    """Kill a part, and require that it is started again."""
    pid = newest_process(log, job)
    assert pid and _is_group_alive(pid), log.read_text()
    os.kill(pid, signal.SIGKILL)
    wait_for_restart(log, job, pid)


def kill_jvm(log: Path, seconds: float = 120) -> bool:
    """Kill the JVM of ``run``, if it starts one in time; return whether there was one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for jvm in jvms_of(newest_process(log, "run")):
            os.kill(jvm, signal.SIGKILL)
            return True
        time.sleep(0.2)
    return False


def start_up(rig: Rig, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, str(HOME / "jobs/up.py"), "--conf", str(rig.conf)], env=rig.environment,
            stdout=sink, stderr=sink, start_new_session=True,
        )


def test_up_resumes_after_each_kill(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with rig_at(postgres, tmp_path, **PACE) as rig:
        log = tmp_path / "up.log"
        up = start_up(rig, log)
        try:
            with rig.load(seed=7):
                for _ in range(_ROUNDS):
                    time.sleep(_PAUSE_SECONDS)
                    kill_part(log, "capture")
                    time.sleep(_PAUSE_SECONDS)
                    kill_part(log, "run")
                    # The end of a dump joins keys, which takes Spark.
                    rig.lake.dump("public.t")
                    assert kill_jvm(log), log.read_text()
                    time.sleep(_PAUSE_SECONDS)
            assert up.poll() is None, log.read_text()
            began = time.monotonic()
            up.send_signal(signal.SIGINT)
            assert up.wait(30) == 0, log.read_text()
            assert time.monotonic() - began < 10
            left = [pid for pid in map(int, re.findall(r"process (\d+)", log.read_text())) if _is_group_alive(pid)]
            assert left == []
            rig.catch_up()
            rig.run("run")
            assert rig.verify_tables() > 0
        finally:
            up.kill()
            for pid in map(int, re.findall(r"process (\d+)", log.read_text())):
                if _is_group_alive(pid):
                    os.killpg(pid, signal.SIGKILL)


def _is_group_alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
