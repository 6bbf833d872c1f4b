"""``up`` under load, with capture, run and Spark's JVM killed in turn: everything resumes, nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.effort import EFFORT
from tests.support.rig import HOME, PACE, Rig, rig_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_ROUNDS = EFFORT
_PAUSE_SECONDS = 8.0
_PROGRAMS = ("org.apache.spark.deploy.SparkSubmit", "org.apache.spark.launcher.Main")
"""The JVM that works, and the one before it that assembles its command line."""


def newest_process(log: Path, job: str) -> int:
    """Return the process that was last started as a job."""
    started = re.findall(rf"started {job}, process (\d+)", log.read_text())
    return int(started[-1]) if started else 0


def members_of(group: int) -> list[tuple[int, str]]:
    """Return the processes of a group that have not ended, with their commands' names."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                name, _, state = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                found += [] if state.split()[0] == "Z" else [(int(entry.name), name)]
        except (OSError, ProcessLookupError):
            continue
    return found


def jvms_of(group: int, program: str) -> list[int]:
    """Return the JVMs in a part's process group that run a Java program."""
    found = []
    for pid, name in members_of(group):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            # Both programs' names are on the launcher's command line.
            names = [word for word in command if word.startswith(b"org.apache.spark.")]
            found += [pid] if "java" in name and names[:1] == [program.encode()] else []
    return found


def wait_for_process(log: Path, job: str, other_than: int = 0) -> int:
    """Return the process that runs a job; it may exit while the server still holds what a killed one had."""
    deadline = time.monotonic() + 120
    while (pid := newest_process(log, job)) == other_than or not members_of(pid):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    return pid


def kill_part(log: Path, job: str) -> None:
    """Kill a part, and require that it is started again."""
    pid = wait_for_process(log, job)
    os.kill(pid, signal.SIGKILL)
    wait_for_process(log, job, pid)


def kill_jvm(log: Path, program: str, seconds: float = 120) -> bool:
    """Kill the JVM of ``run`` with this program, if it starts one in time; return whether there was one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for jvm in jvms_of(newest_process(log, "run"), program):
            os.kill(jvm, signal.SIGKILL)
            return True
        time.sleep(0.02)
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
                for number in range(_ROUNDS):
                    time.sleep(_PAUSE_SECONDS)
                    kill_part(log, "capture")
                    time.sleep(_PAUSE_SECONDS)
                    kill_part(log, "run")
                    # The end of a dump joins keys, which takes Spark.
                    rig.lake.dump("public.t")
                    run = newest_process(log, "run")
                    assert kill_jvm(log, _PROGRAMS[number % 2]), log.read_text()
                    wait_for_process(log, "run", run)
                    time.sleep(_PAUSE_SECONDS)
            assert up.poll() is None, log.read_text()
            began = time.monotonic()
            up.send_signal(signal.SIGINT)
            assert up.wait(30) == 0, log.read_text()
            ended = time.monotonic() - began
            assert ended < 10
            started = list(map(int, re.findall(r"process (\d+)", log.read_text())))
            print(f"{_ROUNDS} rounds, {len(started)} starts, ended after {ended:.1f} s")
            assert len(started) > 2 and [members_of(pid) for pid in started] == [[]] * len(started)
            rig.catch_up()
            rig.run("run")
            events = rig.verify_tables()
            print(f"{events} events, state equals the source")
            assert events > 0
        finally:
            up.kill()
            for pid in map(int, re.findall(r"process (\d+)", log.read_text())):
                if members_of(pid):
                    os.killpg(pid, signal.SIGKILL)
