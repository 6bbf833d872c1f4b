"""Find the batches of landing that are past their retention and that no reader needs, without Spark.

Place: below ``maintenance.run``, which decides that there may be some, and when they are old, and deletes them.
Guarantee: the newest batch stays, and all from the first batch of an open chunk window on. A run reads the watermarks
of the batches since the first one that was open in the run before.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from dblake.base.core.errors import TableUnavailable
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch, record_batch
from dblake.base.lake.query import instant, query_rows, quoted
from dblake.landing.columns import BATCH, CHUNK, CHUNK_ID, HIGH, KIND, LANDED_AT, LEASE_EPOCH
from dblake.landing.control import LowMark
from dblake.transform.reconcile.batch_summary import survey
from dblake.transform.reconcile.landing_files import LandingFiles
from dblake.transform.reconcile.windows import lows_without_high, parse_endings


def last_expired_batch(paths: Paths, reconciled: int, landed_before: datetime, needed: int | None = None) -> int:
    """Return the newest batch that landed before a time, was reconciled and serves no open window; 0 if none.

    All from batch ``needed`` on stay. Never the newest batch: the next batch number continues it, and its lease epoch
    identifies orphans.
    """
    young = _first_batch(paths, f"{BATCH} <= {reconciled} AND {LANDED_AT} >= {instant(landed_before)}")
    kept = [young or reconciled + 1, reconciled, *([] if needed is None else [needed])]
    application = Application.windows_ended(paths.source)
    first_open = _first_open_batch(paths, reconciled, max(newest_batch(paths.schemas, application), 1))
    with suppress(TableUnavailable):  # beside another commit the next run finds it once more
        record_batch(paths.schemas, application, first_open)
    return min(*kept, first_open) - 1


def _first_open_batch(paths: Paths, reconciled: int, since: int) -> int:
    """Return the batch in which the oldest window that reconcile has not closed began; none is older than ``since``.

    Without such a window it is the newest batch that reconcile has read.
    """
    files = LandingFiles(paths.landing, paths.source)
    watermarks = survey(files.files(since, files.newest_batch), since, files.newest_batch).watermarks
    unread = [row for row in watermarks if row.kind == HIGH and row.batch > reconciled]
    first_batches = [ending.end.first_batch for ending in parse_endings(unread) if ending.window]
    ended = {row.chunk for row in watermarks if row.kind == HIGH}
    # Windows of earlier lease epochs have ended, or are orphans that never will.
    (newest,) = query_rows(paths.landing, f"SELECT max({LEASE_EPOCH}) AS epoch FROM t")
    open_lows = [row for row in lows_without_high(watermarks, ended) if row.lease_epoch == newest["epoch"]]
    first_batches += [LowMark.from_json(row.payload).first_batch if row.payload else row.batch for row in open_lows]
    if open_lows:
        ids = ", ".join(quoted(row.chunk_id) for row in open_lows)
        first = _first_batch(paths, f"{KIND} = '{CHUNK}' AND {CHUNK_ID} IN ({ids})")
        first_batches += [first] if first is not None else []
    return min([*first_batches, reconciled])


def _first_batch(paths: Paths, condition: str) -> int | None:
    """Return the first batch with a row that matches an SQL condition; None without one."""
    (row,) = query_rows(paths.landing, f"SELECT min({BATCH}) AS batch FROM t WHERE {condition}")
    first: int | None = row["batch"]
    return first
