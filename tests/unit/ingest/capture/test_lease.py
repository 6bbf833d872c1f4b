"""The lease among processes of one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dblake.base.core.errors import ConfigError, Fenced
from dblake.ingest.capture.local_lease import LocalLease

LIB = Path(__file__).parents[4] / "lib"
HOLDER = """
import sys, time
from pathlib import Path
from dblake.ingest.capture.lease import LocalLease
with LocalLease(Path(sys.argv[1]), "shop"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lease_is_held_inside_its_block_only(tmp_path: Path) -> None:
    lease = LocalLease(tmp_path / "new", "shop")
    assert not lease.held()
    with lease:
        assert lease.held()
        with LocalLease(tmp_path / "new", "another"):
            pass
    assert not lease.held()
    with lease:
        assert lease.held()


def test_second_process_is_rejected_until_first_is_dead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, env={"PYTHONPATH": str(LIB)}, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(Fenced, match=rf"process {holder.pid}\)"), LocalLease(tmp_path, "shop"):
        pass
    holder.kill()
    holder.wait()
    with LocalLease(tmp_path, "shop") as lease:
        assert lease.held()


def test_unwritable_directory_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="progress"), LocalLease(tmp_path / "file", "shop"):
        pass
