"""Build the rows of the window ledger, which records how every chunk window ended.

Place: beside the path, after the events; ``check``, ``status`` and consumers read it. Guarantee: one row for each high
watermark, one for each low watermark whose capture lost its lease before it wrote the high one, and one, without a
chunk, for each incarnation that follows another: the log between the two is missing, or another server continues it.
The counts are those of the events that tasks wrote. Appending the rows is left to ``reconciler``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dblake.base.lake.incarnations import GAP, MOVED
from dblake.landing.control import CLOSED, DISCARDED
from dblake.transform.reconcile.batch_summary import LandingSurvey
from dblake.transform.reconcile.windows import Ending, WatermarkRow

ORPHANED = "orphaned"

Written = Mapping[tuple[str, int], tuple[int, int, int]]
"""Counts of a chunk's rows, fills and removed keys in events, by chunk id and batch of the high watermark."""


def incarnation_rows(preceding: int | None, survey: LandingSurvey) -> list[dict[str, Any]]:
    """Return a WINDOWS row for each batch that begins an incarnation; ``preceding`` is that of the batch before."""
    rows = []
    for batch, incarnation in sorted(survey.incarnations.items()):
        if preceding is not None and incarnation > preceding:
            move = survey.moves.get(batch)
            rows.append({
                "lease_epoch": survey.epochs[batch], "incarnation": incarnation, "batch": batch,
                "status": MOVED if move else GAP,
                "reason": move.reason if move else f"the log after incarnation {preceding} is missing",
            })
        preceding = incarnation
    return rows


def ledger_rows(
    ended: Iterable[Ending], written: Written, withheld: Mapping[str, str], orphans: Mapping[WatermarkRow, int]
) -> list[dict[str, Any]]:
    """Return WINDOWS rows for ended and orphaned chunks.

    ``withheld`` is, by the id of a dump's last chunk, why it deletes nothing. ``orphans`` maps low watermarks without a
    high one to the batch that began a later lease epoch.
    """
    rows = []
    for ending in ended:
        row, end = ending.row, ending.end
        emitted, filled, removed = written.get((row.chunk_id, row.batch), (0, 0, 0))
        dump_start = end.began if end.status == CLOSED else None
        began = None
        if dump_start:
            began = {"incarnation": dump_start.incarnation, "lsn": dump_start.lsn, "seq": dump_start.seq}
        rows.append(_chunk_columns(row) | {
            "dump_id": end.dump_id, "low_lsn": end.low_lsn, "high_lsn": row.lsn, "rows_read": end.rows,
            "rows_emitted": emitted, "rows_dropped": end.rows - emitted - filled, "rows_filled": filled,
            "rows_removed": removed, "status": end.status, "reason": end.reason or withheld.get(row.chunk_id),
            "closed_at": row.committed_at,
            "schema_id": end.schema_id, "began": began, "batch": row.batch,
        })
    for low, batch in orphans.items():
        rows.append(_chunk_columns(low) | {
            "low_lsn": low.lsn, "rows_emitted": 0, "rows_filled": 0, "rows_removed": 0, "status": DISCARDED,
            "reason": ORPHANED, "batch": batch,
        })
    return rows


def _chunk_columns(watermark: WatermarkRow) -> dict[str, Any]:
    return {
        "chunk_id": watermark.chunk_id, "table": watermark.table, "lease_epoch": watermark.lease_epoch,
        "incarnation": watermark.incarnation,
    }
