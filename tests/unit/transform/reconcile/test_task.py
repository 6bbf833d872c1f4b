"""A task gives a window only the rows of its own chunk: same chunk id, same table, same lease epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.landing.control import ChunkEnd
from dblake.transform.reconcile.batch_summary import joined, survey
from dblake.transform.reconcile.landing_files import LandingFiles
from dblake.transform.reconcile.plan import Plan, closing_windows
from dblake.transform.reconcile.task import decode_events
from dblake.transform.reconcile.windows import parse_endings, require_row_counts
from tests.model.dblog import ChunkRow, High, Low
from tests.support.landed import land

T, U = (TableSchema(table, (Column("id", "integer", False, 1),)) for table in ("public.t", "public.u"))


@pytest.mark.parametrize("is_compacted", [False, True], ids=["one file per batch", "one file"])
@pytest.mark.parametrize(
    ("epoch", "table", "chunk_id"), [(1, T, "k"), (2, U, "k"), (2, T, "other")],
    ids=["other lease epoch", "other table", "other chunk id"],
)
def test_row_of_another_chunk_joins_no_window(
    tmp_path: Path, epoch: int, table: TableSchema, chunk_id: str, is_compacted: bool
) -> None:
    """The row is what a capture that died, or a replayed watermark, left: no window that closes may emit it."""
    stray = ChunkRow(1, epoch, table.table, chunk_id, 0, ("9",), {"id": "9"})
    end = ChunkEnd("d", 1, 10, 0, T.schema_id, 1, 2)
    path = str(tmp_path / "landing")
    land(path, "shop", [
        stray, Low(2, 2, T.table, "k", Position(1, 10)), ChunkRow(2, 2, T.table, "k", 0, ("1",), {"id": "1"}),
        High(2, 2, T.table, "k", Position(1, 20), None, end),
    ], {T.table: T, U.table: U})
    if is_compacted:
        DeltaTable(path).optimize.compact()
    summary = survey(LandingFiles(path, "shop").files(1, 2), 1, 2)
    endings = parse_endings(summary.watermarks)
    require_row_counts(endings, summary.chunk_rows)
    plan = Plan(1, 2, {schema.schema_id: schema for schema in (T, U)}, closing_windows(endings))
    events = [event for batch in decode_events(joined(summary.parts), plan) for event in batch.to_pylist()]
    assert [(event["table"], event["op"], event["key"]) for event in events] == [(T.table, "r", [("id", "1")])]
