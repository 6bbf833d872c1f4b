"""The ledger of chunk windows: what became of every chunk, for those who ask whether a dump is whole.

Beside the path, after the events. Promises one row for each high watermark, one for each low watermark whose capture
lost its lease before the high one came, and one, without a chunk, for each incarnation that follows another: the log
between the two is missing. The counts are those of the events
that tasks wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblake.decode.columns import DELETE, FILL, READ
from dblake.landing.control import CLOSED, DISCARDED
from dblake.reconcile.batch_summary import Survey
from dblake.reconcile.windows import Ending, WatermarkRow

ORPHANED = "orphaned"
GAP = "gap"

Written = Mapping[tuple[str, int], tuple[int, int, int]]
"""How many rows and fills of a chunk stand, and keys it removed, by chunk id and batch of its high watermark."""


def written(events: DataFrame) -> DataFrame:
    """``chunk_id, batch, rows, fills, removed`` of dumped events."""
    return events.groupBy("chunk_id", "batch").agg(
        F.count_if(F.col("op") == READ).alias("rows"), F.count_if(F.col("op") == FILL).alias("fills"),
        F.count_if(F.col("op") == DELETE).alias("removed"),
    )


def gap_rows(before: int | None, survey: Survey) -> list[dict[str, Any]]:
    """WINDOWS rows for the batches with which an incarnation begins; ``before`` is that of the batch before these."""
    rows = []
    for batch, incarnation in sorted(survey.incarnations.items()):
        if before is not None and incarnation > before:
            rows.append({
                "lease_epoch": survey.epochs[batch], "incarnation": incarnation, "status": GAP, "batch": batch,
                "reason": f"the log after incarnation {before} is missing",
            })
        before = incarnation
    return rows


def ledger_rows(ended: Iterable[Ending], stand: Written, orphans: Mapping[WatermarkRow, int]) -> list[dict[str, Any]]:
    """WINDOWS rows. ``orphans`` has low watermarks with the batch at which a later lease epoch showed them dead."""
    rows = []
    for ending in ended:
        row, end = ending.row, ending.end
        emitted, filled, removed = stand.get((row.chunk_id, row.batch), (0, 0, 0))
        whole = end.began if end.status == CLOSED else None
        began = {"incarnation": whole.incarnation, "lsn": whole.lsn, "seq": whole.seq} if whole else None
        rows.append(_row(row) | {
            "dump_id": end.dump_id, "low_lsn": end.low_lsn, "high_lsn": row.lsn, "rows_read": end.rows,
            "rows_emitted": emitted, "rows_dropped": end.rows - emitted - filled, "rows_filled": filled,
            "rows_removed": removed, "status": end.status, "reason": end.reason, "closed_at": row.committed_at,
            "schema_id": end.schema_id, "began": began, "batch": row.batch,
        })
    for low, batch in orphans.items():
        rows.append(_row(low) | {
            "low_lsn": low.lsn, "rows_emitted": 0, "rows_filled": 0, "rows_removed": 0, "status": DISCARDED,
            "reason": ORPHANED, "batch": batch,
        })
    return rows


def _row(watermark: WatermarkRow) -> dict[str, Any]:
    return {
        "chunk_id": watermark.chunk_id, "table": watermark.table, "lease_epoch": watermark.lease_epoch,
        "incarnation": watermark.incarnation,
    }
