"""What expiry reads of landing, without Spark: the watermarks since the oldest window that was open the last time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.landing.control import ChunkEnd
from dblake.operate.maintenance import landing_expiry
from dblake.operate.maintenance.landing_expiry import last_expired_batch
from dblake.transform.reconcile.batch_summary import LandingSurvey, survey
from dblake.transform.reconcile.landing_files import LandingFile
from dblake.transform.reconcile.reconciler import Reconciler
from tests.model.dblog import High, Low
from tests.support.landed import Change, LandedRecord, land

T = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
ALWAYS = datetime(2100, 1, 1, tzinfo=UTC)


def put(batch: int) -> Change:
    return Change(batch, 1, Position(1, 100 * batch), 7, T.table, "c", ("1",), {"id": "1", "v": "x"}, last=True)


def low(batch: int, name: str) -> Low:
    return Low(batch, 1, T.table, name, Position(1, 100 * batch + 1))


def high(batch: int, name: str, first: int) -> High:
    end = ChunkEnd("d", 1, 100 * first + 1, 0, T.schema_id, 0, first)
    return High(batch, 1, T.table, name, Position(1, 100 * batch + 2), 900, end)


def test_expiry_reads_batches_since_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that stays open holds all after its beginning, and is found in each run."""
    paths, surveyed = Paths(str(tmp_path), "shop"), list[int]()

    def note(files: Sequence[LandingFile], first: int, last: int) -> LandingSurvey:
        surveyed.append(first)
        return survey(files, first, last)

    def expire(records: Sequence[LandedRecord]) -> int:
        land(paths.landing, "shop", records, {T.table: T})
        reconciler = Reconciler(lambda: pytest.fail("this is little work"), paths)
        reconciler.catch_up()
        last = max(record.batch for record in records)
        reconciler.reconcile(last)
        return last_expired_batch(paths, last, ALWAYS)

    monkeypatch.setattr(landing_expiry, "survey", note)
    assert expire([*map(put, range(1, 9)), low(5, "a")]) == 4
    assert expire([*map(put, range(9, 20)), low(12, "b")]) == 4
    assert expire([high(20, "a", 5), put(20)]) == 11
    assert expire([high(21, "b", 12), put(21)]) == 20
    assert expire([put(22)]) == 21
    assert surveyed == [1, 5, 5, 12, 21]
