"""``verify --wait`` as a user runs it, beside capture, reconcile and state as processes and a busy table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblake.base.lake.locks import commit_lock
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.rig import HOME, PACE, Rig, T, kill, rig_at


@contextmanager
def running(rig: Rig, job: str, *arguments: str) -> Iterator[None]:
    process = rig.start(*arguments, job=job)
    try:
        yield
        assert process.poll() is None, process.communicate()[1]
    finally:
        kill(process)


def verify(rig: Rig, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Return exit code, result and messages."""
    done = subprocess.run(
        [sys.executable, str(HOME / "jobs/verify.py"), "--conf", str(rig.conf), "--wait", "--json", *arguments],
        env=rig.environment, capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode in (0, 65), done.stderr
    (result,) = json.loads(done.stdout)
    return done.returncode, result, done.stderr


def plant(rig: Rig) -> None:
    """Change a value, remove a row and add one, in one commit to the state table."""
    path = rig.lake.paths.state("public", "t")
    with commit_lock(path):
        rows = DeltaTable(path).to_pyarrow_table()
        changed = [row for row in rows.to_pylist() if row["id"] != 9001]
        changed = [row | {"v": "planted"} if row["id"] == 9002 else row for row in changed]
        extra = next(row for row in changed if row["id"] == 9003) | {"_key": "9999", "id": 9999}
        write_deltalake(path, pa.Table.from_pylist([*changed, extra], rows.schema), mode="overwrite")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_verify_wait_finds_and_repairs_beside_all_jobs(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with rig_at(postgres, tmp_path, **PACE) as rig, ExitStack() as jobs:
        rig.backend.run(f"INSERT INTO {T} SELECT n, 0, 'cold' FROM generate_series(9001, 9100) n")  # type: ignore[union-attr]
        rig.lake.dump(T)
        rig.catch_up()
        rig.run("reconcile")
        rig.run("state")
        jobs.enter_context(running(rig, "capture"))
        jobs.enter_context(running(rig, "reconcile", "--continuous"))
        jobs.enter_context(running(rig, "state", "--continuous", "--interval", "1"))
        with rig.load(3):
            assert verify(rig)[0] == 0
            plant(rig)
            code, result, errors = verify(rig)
            assert (code, result["missing"], result["extra"], result["different"]) == (65, 1, 1, 1), result
            assert "3 rows of state differ from the source" in errors
            code, result, _ = verify(rig, "--repair")
            assert (code, result["repaired"]) == (0, 3), result
            assert verify(rig)[0] == 0
