"""What capture writes to: a disk that is full, and documents that are not what was written there.

The limit on a file's size stands in for the full disk: it can be set for one process, by anybody, and lifted again.
"""

from __future__ import annotations

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


# Nothing can be written; or documents and a commit of the table's log, but not its data.
@pytest.mark.parametrize("room", [0, 2000])
def test_a_full_disk_ends_capture_which_goes_on_once_there_is_room(rig: Rig, room: int) -> None:
    with rig.load(seed=room):
        process = rig.start()
        rig.wait_for_batches(3, by=process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        _, said = process.communicate(timeout=60)
        assert process.returncode == 75, said
        assert re.fullmatch(
            r"dblake capture: (batch \d+ could not be landed: file too large|progress: the directory cannot be written:"
            r" File too large)\. Next: .*", said.splitlines()[-1],
        )
        again = rig.start("--seconds", "0")
        resource.prlimit(again.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        _, said = again.communicate(timeout=60)
        assert again.returncode in (0, 75), said
    rig.catch_up()
    assert [dump["state"] for dump in rig.lake.dumps()] == ["done"]
    rig.verify()


def test_a_dump_that_cannot_be_queued_is_not_half_queued(rig: Rig) -> None:
    asked = subprocess.run(
        ["prlimit", "--fsize=0", sys.executable, str(HOME / "jobs/dump.py"), "start", "--conf", str(rig.conf),
         "--table", T],
        env=rig.environment, capture_output=True, text=True, check=False, timeout=60,
    )
    assert asked.returncode == 75, asked.stderr
    assert "progress: the directory cannot be written: File too large" in asked.stderr
    assert [dump["state"] for dump in rig.lake.dumps()] == ["queued"], "the one that was there before"
    rig.catch_up()


@pytest.mark.parametrize(("kind", "text"), [
    ("requests", b'{"id": "2026'), ("progress", b"\x00" * 300),
])
def test_a_corrupt_document_is_refused_by_name_and_mended_by_deleting_it(rig: Rig, kind: str, text: bytes) -> None:
    with rig.load(seed=11):
        dying = rig.start(failpoint="dump.progress_saved:3")
        dying.communicate(timeout=60)
    (document,) = (rig.lake.progress / "shop/dumps" / kind).glob("*.json")
    document.write_bytes(text)
    process = rig.start("--until-caught-up")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 78
    assert f"progress: the file {document} is not what was written there. Next: delete that file" in said
    document.unlink()
    if kind == "requests":
        rig.lake.dump(T)
    rig.catch_up()
    assert "done" in {dump["state"] for dump in rig.lake.dumps()}
    rig.verify()
