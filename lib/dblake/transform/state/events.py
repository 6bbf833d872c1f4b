"""New events, read from their files with Arrow: those of one table or of all. What there is counts ``survey``.

Files are skipped by their batch statistics in the Delta log, row groups by those in their footers. A reader holds one
row group at a time. ``Selection`` names the wanted rows, ``Span`` where they may be; both can be sent to Spark's
executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.base.lake.files import file_path, filesystem
from dblake.base.lake.tables import list_files, open_table
from dblake.payloads.decode.columns import IMAGE, KEY_BEFORE
from dblake.transform.state.fold import NEEDED

_REPEATED = ["table", "op", "schema_id", "origin"]
_PAYLOAD = ("key", "after")
_ENTRY_BYTES = 16


@dataclass(frozen=True)
class Selection:
    """Which events: of batches after ``after`` up to ``until``.

    Events of the tables in ``behind`` are wanted from after their own batch. ``table`` limits the selection to one
    table, ``since`` to a position and later; ``schema_ids`` and ``key`` to rows of these schemas whose key has exactly
    these columns, and truncates.
    """

    after: int
    until: int
    behind: Mapping[str, int] = field(default_factory=dict)
    table: str | None = None
    since: Position | None = None
    schema_ids: frozenset[str] | None = None
    key: tuple[str, ...] = ()

    @property
    def first(self) -> int:
        """The batch after which the earliest wanted event can be."""
        if self.table is not None:
            return self.behind.get(self.table, self.after)
        return min([self.after, *self.behind.values()])

    def filter(self, events: pa.Table) -> pa.Table:
        """Return the wanted rows; ``events`` has the columns that the conditions are about."""
        batches = events["batch"].to_numpy()
        wanted = (batches > self.after) & (batches <= self.until)
        for table, after in self.behind.items():
            wanted |= (batches > after) & (batches <= self.until) & flags(pc.equal(events["table"], table))
        if self.table is not None:
            wanted &= flags(pc.equal(events["table"], self.table))
        if self.since is not None:
            wanted &= ~is_older([events[name].to_numpy() for name in Position.COLUMNS], position_parts(self.since))
        if self.schema_ids is not None and wanted.any():
            fits = flags(pc.is_in(events["schema_id"].cast(pa.string()), pa.array(sorted(self.schema_ids))))
            # A row of an earlier key is another row, also if its key has all these columns: the end of a dump deletes
            # the keys of before.
            if self.key:
                fits &= _key_sizes(events["key"]) == len(self.key)
            for name in self.key:
                fits &= flags(pc.is_valid(pc.map_lookup(events["key"], name, "first")))
            wanted &= fits | flags(pc.equal(events["op"], Op.TRUNCATE))
        return events if wanted.all() else events.filter(pa.array(wanted))


@dataclass(frozen=True)
class Span:
    """Row groups of one events file."""

    path: str
    groups: tuple[int, ...]
    bytes_per_row: float


class Events:
    """The events table as of its newest version when this was made."""

    def __init__(self, path: str) -> None:
        self._path = path
        files = list_files(open_table(path))
        missing = [None] * files.num_rows
        least, most = (
            files[name].to_pylist() if name in files.column_names else missing for name in ("min.batch", "max.batch")
        )
        self._files = sorted(zip(files["path"].to_pylist(), least, most, strict=True), key=lambda f: (f[2] or 0, f[0]))
        self._spans: dict[str, list[tuple[int, int | None, int | None, float]]] = {}

    def spans(self, wanted: Selection) -> list[Span]:
        """Return where the events of a selection may be."""
        found = []
        for path, least, most in self._files:
            if (most is not None and most <= wanted.first) or (least is not None and least > wanted.until):
                continue
            groups = [
                (group, size) for group, low, high, size in self._groups(path)
                if (high is None or high > wanted.first) and (low is None or low <= wanted.until)
            ]
            if groups:
                found.append(Span(path, tuple(g for g, _ in groups), max(size for _, size in groups)))
        return found

    def read(self, wanted: Selection, columns: Sequence[str] = ("table", *NEEDED)) -> Iterator[pa.Table]:
        """Yield the events of a selection, one row group at a time."""
        for span in self.spans(wanted):
            yield from self.read_span(span, wanted, columns)

    def read_span(
        self, span: Span, wanted: Selection, columns: Sequence[str] = ("table", *NEEDED)
    ) -> Iterator[pa.Table]:
        """Yield the wanted events of one span, one row group at a time."""
        return read_span(self._path, span, wanted, columns)

    @property
    def newest_batch(self) -> int | None:
        """The newest batch by the files' statistics; None if a file has none."""
        newest = [most for _, _, most in self._files]
        return None if None in newest else max(newest, default=0)

    def first_batch(self, after: int) -> int:
        """Return a batch after ``after`` and not after the first one with events there, by the files' statistics."""
        later = [max(least or 0, after + 1) for _, least, most in self._files if most is None or most > after]
        return min(later, default=after + 1)

    def _groups(self, path: str) -> list[tuple[int, int | None, int | None, float]]:
        """For each row group its least and greatest batch, and the bytes of a row's images."""
        if path not in self._spans:
            system, base = filesystem(self._path)
            with system.open_input_file(file_path(base, path)) as source:
                facts = pq.ParquetFile(source).metadata
            self._spans[path] = [_group(facts.row_group(n), n) for n in range(facts.num_row_groups)]
        return self._spans[path]


def read_span(root: str, span: Span, wanted: Selection, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the wanted events of a span of the events table at ``root``, one row group at a time."""
    conditions = {"batch", "table", *(Position.COLUMNS if wanted.since else ())}
    if wanted.schema_ids is not None:
        conditions |= {"schema_id", "key", "op"}
    system, base = filesystem(root)
    with system.open_input_file(file_path(base, span.path)) as source:
        file = pq.ParquetFile(source, read_dictionary=_REPEATED, coerce_int96_timestamp_unit="us", pre_buffer=False)
        names = [name for name in file.schema_arrow.names if name in {*columns, *conditions}]
        for group in span.groups:
            found = file.read_row_group(group, names, use_threads=False)
            yield _plain(_with_columns(wanted.filter(found), columns))


def _with_columns(events: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Select columns; of a file that an earlier version wrote, ``key_before`` is NULL."""
    if KEY_BEFORE in columns and KEY_BEFORE not in events.column_names:
        events = events.append_column(KEY_BEFORE, pa.nulls(events.num_rows, IMAGE))
    return events.select(list(columns))


def _plain(events: pa.Table) -> pa.Table:
    """Decode dictionaries, which differ from file to file."""
    for place, one in enumerate(events.schema):
        if pa.types.is_dictionary(one.type):
            events = events.set_column(place, one.name, events[one.name].cast(one.type.value_type))
    return events


def _group(facts: pq.RowGroupMetaData, number: int) -> tuple[int, int | None, int | None, float]:
    low = high = None
    size = 0
    for place in range(facts.num_columns):
        column = facts.column(place)
        name = column.path_in_schema
        if name == "batch" and column.statistics is not None and column.statistics.has_min_max:
            low, high = column.statistics.min, column.statistics.max
        if name.startswith(_PAYLOAD):
            # Dictionaries keep repeated texts small in the file, not in memory.
            size += column.total_uncompressed_size + _ENTRY_BYTES * column.num_values
    return number, low, high, size / max(facts.num_rows, 1)


def _key_sizes(keys: pa.ChunkedArray) -> np.ndarray:
    """Return how many columns each key has."""
    return np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in keys.chunks] or [np.zeros(0, np.int32)])


def split_tables(events: pa.Table) -> dict[str, pa.Table]:
    """Split events by ``table``; each table's keep their order."""
    names = encoded(events["table"])
    codes = names.indices.to_numpy()
    events = events.drop_columns(["table"])
    if len(names.dictionary) == 1:
        return {names.dictionary[0].as_py(): events}
    order = np.argsort(codes, kind="stable")
    ordered = events.take(pa.array(order))
    bounds = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1))
    return {
        name: ordered.slice(bounds[code], bounds[code + 1] - bounds[code])
        for code, name in enumerate(names.dictionary.to_pylist()) if bounds[code + 1] > bounds[code]
    }


def newest_truncate(events: pa.Table) -> Position | None:
    """Return the newest truncate among the events of one table."""
    rows = np.flatnonzero(flags(pc.equal(events["op"], Op.TRUNCATE)))
    at = [events[name].to_numpy() for name in Position.COLUMNS]
    return max((Position(*(int(part[row]) for part in at)) for row in rows), default=None)


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return names as one array of codes with their dictionary."""
    column = column.cast(pa.string()).combine_chunks().dictionary_encode()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def flags(values: pa.ChunkedArray) -> np.ndarray:
    """Return a boolean column as a mask; NULL is false."""
    mask: np.ndarray = pc.fill_null(values, False).to_numpy()
    return mask.astype(bool, copy=False)
