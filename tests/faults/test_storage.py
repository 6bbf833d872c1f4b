"""Storage that fails: a full disk and corrupt progress documents.

A limit on the size of files simulates a full disk: it can be set for one process, without root, and lifted again.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rig import HOME, Rig, T, rig_on


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with rig_on("postgres", request, tmp_path) as rig:
        rig.lake.dump(T)
        yield rig


# Nothing can be written; or documents and a commit of the table's log can, but not its data.
@pytest.mark.parametrize("room", [0, pytest.param(2000, marks=pytest.mark.slow)])
def test_full_disk_ends_capture_which_resumes_with_room(rig: Rig, room: int) -> None:
    with rig.load(seed=room):
        process = rig.start()
        rig.wait_for_batches(3, by=process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        _, log = process.communicate(timeout=60)
        assert process.returncode == 75, log
        assert "panicked" not in log and "backtrace" not in log
        assert re.fullmatch(
            r"dblake capture: (batch \d+ could not be landed: file too large|progress: the directory cannot be written:"
            r" File too large)\. Next: .*", log.splitlines()[-1],
        )
        again = rig.start("--seconds", "0")
        resource.prlimit(again.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        _, log = again.communicate(timeout=60)
        assert again.returncode in (0, 75), log
    rig.catch_up()
    assert [dump["state"] for dump in rig.lake.dumps()] == ["done"]
    rig.verify()


# Root may write everywhere, unless it lacks these capabilities.
_AS_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.parametrize("path", [
    "warehouse/shop/landing/_delta_log",
    *(pytest.param(path, marks=pytest.mark.slow) for path in ("warehouse", "warehouse/shop/landing", "/proc/dblake")),
])
def test_unwritable_warehouse_ends_capture_for_good(rig: Rig, path: str) -> None:
    """A service does not restart it: it would fail again."""
    rig.catch_up()
    folder = rig.conf.parent / path
    if path == "/proc/dblake":
        rig.configure(warehouse=path)
    else:
        for inner in (folder, *(file for file in folder.rglob("*") if file.is_dir())):
            inner.chmod(0o555)
    with rig.load(seed=1):
        capture = subprocess.run(
            [*_AS_USER, sys.executable, str(HOME / "jobs/capture.py"), "--conf", str(rig.conf), "--seconds", "10"],
            env=rig.environment, capture_output=True, text=True, check=False, timeout=60,
        )
    assert capture.returncode == 78, capture.stderr
    assert re.search(r"(permission denied|no such file or directory)\. Next: set `warehouse` to a path",
                     capture.stderr.splitlines()[-1]), capture.stderr
    assert "Error" not in capture.stderr


def test_dump_on_full_disk_is_not_queued(rig: Rig) -> None:
    start = subprocess.run(
        ["prlimit", "--fsize=0", sys.executable, str(HOME / "jobs/dump.py"), "start", "--conf", str(rig.conf),
         "--table", T],
        env=rig.environment, capture_output=True, text=True, check=False, timeout=60,
    )
    assert start.returncode == 75, start.stderr
    assert "progress: the directory cannot be written: File too large" in start.stderr
    assert [dump["state"] for dump in rig.lake.dumps()] == ["queued"], "only the earlier dump is queued"
    rig.catch_up()


@pytest.mark.parametrize(("kind", "text"), [
    ("requests", b'{"id": "2026'), pytest.param("progress", b"\x00" * 300, marks=pytest.mark.slow),
], ids=["requests", "progress"])
def test_corrupt_document_is_named_and_can_be_deleted(rig: Rig, kind: str, text: bytes) -> None:
    with rig.load(seed=11):
        dying = rig.start(failpoint="dump.progress_saved:3")
        dying.communicate(timeout=60)
    (document,) = (rig.lake.progress / "shop/dumps" / kind).glob("*.json")
    document.write_bytes(text)
    process = rig.start("--until-caught-up")
    _, log = process.communicate(timeout=60)
    assert process.returncode == 78
    assert f"progress: the file {document} is corrupt: not a JSON object. Next: delete that file" in log
    document.unlink()
    if kind == "requests":
        rig.lake.dump(T)
    rig.catch_up()
    assert "done" in {dump["state"] for dump in rig.lake.dumps()}
    rig.verify()
