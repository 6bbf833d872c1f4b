"""The frontier: which batch and position state has reached, and which version of every state table holds it.

State appends one row per step, cut at a transaction's end, so a row names one consistent point over all tables. Reading
and appending go through delta-rs; which rows to append is ``state.run``'s decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from dblake.base.core.position import Position
from dblake.base.core.steps import step
from dblake.base.lake.commits import confirmed_commit
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.query import instant, query_arrow
from dblake.base.lake.tables import create_table, find_table, list_files, open_table

#: ``versions`` maps a table to its state table's Delta version, ``behind`` a table that failed to its own batch.
FRONTIER = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("batch", pa.int64()),
        ("incarnation", pa.int64()),
        ("lsn", pa.int64()),
        ("seq", pa.int64()),
        ("versions", pa.map_(pa.string(), pa.int64())),
        ("behind", pa.map_(pa.string(), pa.int64())),
    ]
)


@dataclass(frozen=True)
class Frontier:
    """One row of the frontier: all state tables hold ``batch``, except those ``behind``, which hold their own."""

    batch: int = 0
    position: Position | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)


def read_frontier(
    paths: Paths, *, until: Position | datetime | None = None, version: int | None = None
) -> Frontier:
    """Return the newest row; with ``until``, the newest one at or before a position or a time with a zone.

    With ``version`` it is the newest row that the table had then. Without such a row the result has batch 0 and no
    position.
    """
    table = find_table(paths.frontier)
    if table is None:
        return Frontier()
    if version is not None:
        table = open_table(paths.frontier, version)
    if until is None:
        where = _newest_batch(table)
    elif isinstance(until, Position):
        i, lsn, seq = until.incarnation, until.lsn, until.seq
        where = f"incarnation < {i} OR (incarnation = {i} AND (lsn < {lsn} OR (lsn = {lsn} AND seq <= {seq})))"
    else:
        where = f"at <= {instant(until)}"
    rows = query_arrow(
        table,
        "SELECT batch, incarnation, lsn, seq, versions, behind FROM t "
        f"WHERE {where} ORDER BY batch DESC, at DESC LIMIT 1",
    ).to_pylist()
    if not rows:
        return Frontier()
    row = rows[0]
    position = Position(row["incarnation"], row["lsn"], row["seq"])
    return Frontier(row["batch"], position, dict(row["versions"] or []), dict(row["behind"] or []))


def _newest_batch(table: DeltaTable) -> str:
    """Return the condition of the newest batch by the files' statistics: state adds a file with each step."""
    files = list_files(table)
    # A table that was just created has no file, and may have the column.
    if not len(files) or "max.batch" not in files.column_names or files["max.batch"].null_count:
        return "true"
    return f"batch >= {pc.max(files['max.batch']).as_py()}"


def append_frontier(paths: Paths, frontier: Frontier) -> None:
    """Append a row for a point that state has reached. A repeated step appends an equal row."""
    at = frontier.position
    if at is None:
        raise ValueError("a frontier row needs the position that state has reached")
    row = {
        "at": datetime.now(UTC), "batch": frontier.batch, "incarnation": at.incarnation, "lsn": at.lsn, "seq": at.seq,
        "versions": list(frontier.versions.items()), "behind": list(frontier.behind.items()),
    }
    with step("state.frontier", batch=frontier.batch, position=str(at)), commit_lock(paths.frontier):
        table = find_table(paths.frontier)
        if table is None:
            create_table(paths.frontier, FRONTIER)
            table = open_table(paths.frontier)
        with confirmed_commit(paths.frontier) as metadata:
            write_deltalake(
                table, pa.Table.from_pylist([row], schema=FRONTIER), mode="append",
                commit_properties=CommitProperties(metadata),
            )
