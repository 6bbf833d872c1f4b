"""Survey landing batches in the driver, before anything is decoded.

Reads the small columns of the batches' files with Arrow, and payloads only of watermarks and schemas. Promises the
batch numbers that are there, the low and high watermarks and schemas among their rows, how many rows each chunk has,
and the row groups that tasks will read. Deciding what follows from it is left to ``microbatch``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.files import filesystem, group_bounds
from dblake.landing.columns import (
    BATCH,
    CHUNK,
    CHUNK_ID,
    HIGH,
    INCARNATION,
    KIND,
    LEASE_EPOCH,
    LOW,
    LSN,
    MOVED,
    ROW,
    SCHEMA,
    SEQ,
    TABLE,
    TRUNCATE,
)
from dblake.landing.control import MoveMark
from dblake.transform.reconcile.landing_files import LandingFile
from dblake.transform.reconcile.windows import ChunkName, WatermarkRow

_WATERMARK_COLUMNS = [f.name for f in fields(WatermarkRow)]
_COUNTED = [BATCH, LEASE_EPOCH, INCARNATION, KIND, TABLE, CHUNK_ID]
_CONTROL = pa.array([LOW, HIGH, SCHEMA, MOVED])


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """A table's schema, from the position on at which the log showed it."""

    schema: TableSchema
    batch: int
    incarnation: int
    lsn: int
    seq: int


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Some row groups of a file: what a task reads. ``size`` is in bytes, uncompressed."""

    path: str
    groups: tuple[int, ...]
    size: int
    rows: int = 0


@dataclass(slots=True)
class LandingSurvey:
    """``epochs`` has the lease epoch of each batch present, ``incarnations`` its incarnation.

    ``chunk_rows`` counts the rows of each chunk that landed, ``log_rows`` those that become log events.
    ``moves`` has, by batch, why the incarnation that begins there is no gap.
    ``truncates`` are the positions at which each table was truncated, ``parts`` the row groups with rows that become
    events, ``chunk_parts`` those with chunk rows.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    incarnations: dict[int, int] = field(default_factory=dict)
    moves: dict[int, MoveMark] = field(default_factory=dict)
    watermarks: list[WatermarkRow] = field(default_factory=list)
    schemas: list[SchemaRow] = field(default_factory=list)
    chunk_rows: Counter[ChunkName] = field(default_factory=Counter)
    log_rows: int = 0
    truncates: dict[str, list[Position]] = field(default_factory=dict)
    parts: list[RowGroups] = field(default_factory=list)
    chunk_parts: list[RowGroups] = field(default_factory=list)


def survey(files: Iterable[LandingFile], first: int, last: int) -> LandingSurvey:
    """Survey the batches from ``first`` to ``last`` in these files."""
    summary = LandingSurvey()
    for file in files:
        with _opened(file.path) as parquet:
            with_events, with_chunks = list[int](), list[int]()
            for group, rows in _groups(parquet, first, last):
                log_rows, chunk_rows = _count(summary, rows)
                with_events += [group] if log_rows or chunk_rows else []
                with_chunks += [group] if chunk_rows else []
                _add_control_rows(summary, parquet, group, rows, first, last)
            summary.parts += [_part(file.path, parquet, with_events)] if with_events else []
            summary.chunk_parts += [_part(file.path, parquet, with_chunks)] if with_chunks else []
    summary.watermarks.sort(key=lambda w: (w.batch, w.incarnation, w.lsn, w.seq))
    return summary


def chunk_parts(
    files: Iterable[LandingFile], first: int, last: int, chunk_ids: Sequence[str]
) -> tuple[Counter[ChunkName], list[RowGroups]]:
    """Count the rows of some chunks in the batches from ``first`` to ``last``; return also where they are."""
    names, counts, parts = pa.array(chunk_ids, pa.string()), Counter[ChunkName](), []
    for file in files:
        with _opened(file.path) as parquet:
            groups = []
            for group, rows in _groups(parquet, first, last):
                of_chunks = _of_kind(rows.filter(pc.is_in(rows[CHUNK_ID], names)), CHUNK)
                if of_chunks.num_rows:
                    counts.update(_chunk_counts(of_chunks))
                    groups.append(group)
            if groups:
                parts.append(_part(file.path, parquet, groups))
    return counts, parts


def file_parts(paths: Iterable[str]) -> list[RowGroups]:
    """Return all row groups of some files."""
    parts = []
    for path in paths:
        with _opened(path) as parquet:
            parts.append(_part(path, parquet, range(parquet.num_row_groups)))
    return parts


def joined(*parts: Iterable[RowGroups]) -> list[RowGroups]:
    """Join lists of parts so that no row group is read twice; files keep the order in which they come first."""
    by_path: dict[str, RowGroups] = {}
    for part in (part for some in parts for part in some):
        previous = by_path.get(part.path)
        if previous is None:
            by_path[part.path] = part
        elif new := set(part.groups) - set(previous.groups):
            groups = tuple(sorted({*previous.groups, *new}))
            size, rows = (
                before + added * len(new) // len(part.groups)
                for before, added in ((previous.size, part.size), (previous.rows, part.rows))
            )
            by_path[part.path] = RowGroups(part.path, groups, size, rows)
    return list(by_path.values())


def divided(parts: Iterable[RowGroups], count: int) -> list[list[RowGroups]]:
    """Divide parts, in their order, among at most ``count`` tasks of about the same size.

    A file of several row groups may be divided, one row group is not.
    """
    single = [
        RowGroups(part.path, (group,), part.size // len(part.groups), part.rows // len(part.groups))
        for part in parts for group in part.groups
    ]
    total, offset = sum(part.size for part in single), 0
    tasks: list[list[RowGroups]] = [[] for _ in range(count)]
    for part in single:
        task = tasks[min(count - 1, count * (2 * offset + part.size) // max(2 * total, 1))]
        offset += part.size
        if task and task[-1].path == part.path:
            previous = task.pop()
            size, rows = previous.size + part.size, previous.rows + part.rows
            task.append(RowGroups(part.path, previous.groups + part.groups, size, rows))
        else:
            task.append(part)
    return [task for task in tasks if task]


def _opened(path: str) -> pq.ParquetFile:
    system, inside = filesystem(path)
    return pq.ParquetFile(inside, filesystem=system)


def _groups(parquet: pq.ParquetFile, first: int, last: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the row groups that hold batches from ``first`` to ``last``, with the small columns of their rows."""
    for group in range(parquet.num_row_groups):
        if not _may_hold_batches(parquet.metadata.row_group(group), first, last):
            continue
        rows = parquet.read_row_group(group, columns=_COUNTED, use_threads=False)
        batch = rows[BATCH]
        ends = pc.min_max(batch).as_py()
        if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
            rows = rows.filter(_between(batch, first, last))
        if rows.num_rows:
            yield group, rows


def _may_hold_batches(group: Any, first: int, last: int) -> bool:
    low, high = group_bounds(group, (BATCH,))
    return bool(low.get(BATCH, first) <= last and high.get(BATCH, last) >= first)


def _between(batch: pa.ChunkedArray, first: int, last: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(batch, first), pc.less_equal(batch, last))


def _of_kind(rows: pa.Table, *kinds: str) -> pa.Table:
    return rows.filter(pc.is_in(rows[KIND], pa.array(kinds, pa.string())))


def _count(summary: LandingSurvey, rows: pa.Table) -> tuple[int, int]:
    """Count the rows of batches and chunks; return how many log and chunk rows there are."""
    # A batch has one of each.
    for row in rows.group_by(BATCH).aggregate([(LEASE_EPOCH, "max"), (INCARNATION, "max")]).to_pylist():
        summary.epochs[row[BATCH]] = row[f"{LEASE_EPOCH}_max"]
        summary.incarnations[row[BATCH]] = row[f"{INCARNATION}_max"]
    log_rows = pc.sum(pc.is_in(rows[KIND], pa.array([ROW, TRUNCATE]))).as_py() or 0
    summary.log_rows += log_rows
    chunk_counts = _chunk_counts(_of_kind(rows, CHUNK))
    summary.chunk_rows.update(chunk_counts)
    return log_rows, chunk_counts.total()


def _chunk_counts(rows: pa.Table) -> Counter[ChunkName]:
    counted = rows.group_by([CHUNK_ID, TABLE, LEASE_EPOCH]).aggregate([([], "count_all")])
    return Counter({
        (row[CHUNK_ID], row[TABLE], row[LEASE_EPOCH]): row["count_all"] for row in counted.to_pylist()
    })


def _add_control_rows(
    summary: LandingSurvey, parquet: pq.ParquetFile, group: int, rows: pa.Table, first: int, last: int
) -> None:
    """Read the watermarks, schemas and truncates of a row group; payloads only if it holds watermarks or schemas."""
    kinds = set(pc.unique(rows[KIND]).to_pylist())
    if TRUNCATE in kinds:
        columns = [BATCH, KIND, TABLE, INCARNATION, LSN, SEQ]
        truncates = parquet.read_row_group(group, columns=columns, use_threads=False)
        for row in _of_kind(truncates.filter(_between(truncates[BATCH], first, last)), TRUNCATE).to_pylist():
            at = Position(row[INCARNATION], row[LSN], row[SEQ])
            summary.truncates.setdefault(row[TABLE], []).append(at)
    if not kinds & {LOW, HIGH, SCHEMA, MOVED}:
        return
    # Payloads last: of most files only a few rows are taken.
    whole = parquet.read_row_group(group, columns=_WATERMARK_COLUMNS, use_threads=False)
    is_control = pc.and_(pc.is_in(whole[KIND], _CONTROL), _between(whole[BATCH], first, last))
    for row in whole.filter(is_control).to_pylist():
        if row[KIND] == SCHEMA:
            schema = TableSchema.from_json(row["payload"])
            summary.schemas.append(SchemaRow(schema, row[BATCH], row[INCARNATION], row[LSN], row[SEQ]))
        elif row[KIND] == MOVED:
            summary.moves[row[BATCH]] = MoveMark.from_json(row["payload"])
        else:
            summary.watermarks.append(WatermarkRow(**row))


def _part(path: str, parquet: pq.ParquetFile, groups: Iterable[int]) -> RowGroups:
    numbers = tuple(groups)
    read = [parquet.metadata.row_group(number) for number in numbers]
    return RowGroups(path, numbers, sum(group.total_byte_size for group in read), sum(group.num_rows for group in read))

