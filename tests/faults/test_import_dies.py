"""Capture killed while it imports files, beside writes: no row is imported twice or skipped, no change is undone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.effort import with_effort
from tests.support.exports import Export, export
from tests.support.oracle import find_wrong_steps
from tests.support.rig import Rig, T, observe_event, rig_on

_COLD_ROWS = 300
_KILLS = [
    *(("postgres", name) for name in ("dump.low_written", "dump.chunk_read", "dump.high_written", "landing.committed")),
    *(("postgres", name) for name in ("dump.before_progress", "dump.progress_saved")),
    ("mariadb", "landing.committed"), *with_effort(("mariadb", "dump.chunk_read")),
]


def options(taken: Export) -> list[str]:
    files = taken.files
    snapshot = ["--snapshot", files.snapshot] if files.snapshot else []
    return ["--table", T, "--at", files.at, *snapshot, "--format", files.format, *files.files]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failpoint"), _KILLS)
def test_killed_import_resumes_exactly(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, failpoint: str
) -> None:
    with rig_on(kind, request, tmp_path) as rig:
        add_cold_rows(rig)
        rig.catch_up()
        with rig.load(seed=len(failpoint)):
            rig.catch_up()
            taken = export(rig.backend, T, tmp_path / "rows.txt")
            rig.catch_up()
            rig.run("dump", "import", *options(taken))
            dying = rig.start(failpoint=f"{failpoint}:5")
            _, log = dying.communicate(timeout=60)
            assert dying.returncode == -signal.SIGKILL, log
        rig.catch_up()
        (dump,) = rig.lake.dumps()
        assert (dump["state"], dump["rows"] > _COLD_ROWS) == ("done", True)
        events = [event for event in rig.lake.reconciled()[0] if event.table == T]
        busy = [observe_event(event) for event in events if (event.key or ("",))[0] in rig.written]
        assert not find_wrong_steps(busy, rig.written)
        assert rig.lake.state(T) == {(row["id"],): row for row in rig.backend.rows(T)}
        assert sum(event.op == "r" for event in events) >= _COLD_ROWS


def add_cold_rows(rig: Rig) -> None:
    """Add rows that never change: only the import can bring them."""
    with rig.backend.begin() as transaction:
        for number in range(9001, 9001 + _COLD_ROWS):
            transaction.insert(T, {"id": str(number), "n": "0", "v": "cold"})
