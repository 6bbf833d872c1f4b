"""When landing batches arrived in a table: noted in the commits that append them, read back from the table's Delta log.

Place: reconcile notes the batches of each commit to events; ``report`` reads the times. Guarantee: a batch has the time
of the commit that brought it. Commits without a note (of maintenance, a redecode, or an earlier version) count for
nothing, so a batch whose commit left the log, or never had a note, has no time. No data file is read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from dblake.base.lake.tables import DeltaTable, find_table

BATCHES = "dblake.batches"
"""Key of commit metadata: the first and the last landing batch that the commit appends, such as ``12-17``."""
BATCH_TIMES = pa.schema([("first", pa.int64()), ("batch", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
_FIRST_COMMITS = 100
_MAX_COMMITS = 12_800
"""So many of the newest commits are read at most: on object storage each is a request."""


def note_batches(first: int, last: int) -> dict[str, str]:
    """Return commit metadata that names the landing batches which a commit appends."""
    return {BATCHES: f"{first}-{last}"}


def read_batch_times(path: str, since: datetime) -> pa.Table:
    """Return the batches that commits since a time appended: a row of BATCH_TIMES each, ``batch`` being the last.

    Of a long log only the newest 12,800 commits are searched. The table may not exist.
    """
    table = find_table(path)
    begin = int(since.timestamp() * 1000)
    commits = _read_commits(table, begin) if table else []
    rows = [(*_parse(commit[BATCHES]), commit["timestamp"] * 1000) for commit in commits
            if BATCHES in commit and commit["timestamp"] >= begin]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table([pa.array(column, pa.int64()) for column in columns], BATCH_TIMES.names).cast(BATCH_TIMES)


def _read_commits(table: DeltaTable, begin: int) -> list[dict[str, Any]]:
    """Return the newest commits, at least those since a time in milliseconds that the log still has."""
    limit = _FIRST_COMMITS
    while True:
        commits: list[dict[str, Any]] = table.history(limit)
        if len(commits) < limit or limit == _MAX_COMMITS or commits[-1]["timestamp"] < begin:
            return commits
        limit = min(4 * limit, _MAX_COMMITS)


def _parse(batches: str) -> tuple[int, int]:
    first, _, last = batches.partition("-")
    return int(first), int(last)
