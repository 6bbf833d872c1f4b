"""Compact the events table with Arrow: merge small files into files that are ordered by position.

Place: below ``maintenance.run``, in place of Spark's OPTIMIZE, which loses the order of the rows and writes row groups
of 128 MB, of which a consumer reads all for a few rows. Guarantee: the table has the same rows before and after;
readers of its changes see none; a merge that loses to another writer's commit is repeated from a fresh read. VACUUM
removes the files of a merge that failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.core.positions import is_older
from dblake.base.lake.files import group_bounds
from dblake.base.lake.log import replace_files
from dblake.base.lake.tables import list_files, open_table
from dblake.landing.columns import INCARNATION, LSN, SEQ
from dblake.operate.maintenance.compaction import SMALL_FILE_BYTES
from dblake.transform.events.file_reader import as_plain_columns, concat_by_position, open_event_file
from dblake.transform.events.files import EVENT_COLUMNS, EventFile, EventFileWriter
from dblake.transform.spark.conflicts import retry_on_conflict
from dblake.transform.state.runner import LocalRunner, TaskRunner

_ORDERED_BYTES = 64 << 20
"""Bytes of events that are ordered together; more where the row groups of many files overlap."""


def compact_events(path: str, small_bytes: int = SMALL_FILE_BYTES, runner: TaskRunner | None = None) -> int:
    """Merge files below ``small_bytes``, neighbors by position, into files of up to twice that; return their number.

    Each merge is one commit, so that a run which fails keeps the merges before it. ``runner`` executes the merges.
    """
    runner = runner or LocalRunner(1)
    return sum(_merge(path, files, runner) for files in _choose_files(path, small_bytes))


def _choose_files(path: str, small_bytes: int) -> list[list[str]]:
    """Return the sets of files that are to become one.

    All of a set have the same incarnations, in general one: LSNs of another may be lower or the same, and statistics of
    both together bound the positions of neither.
    """
    files, names = list_files(open_table(path)), [f"min.{INCARNATION}", f"max.{INCARNATION}", f"min.{LSN}"]
    if not {*names} <= {*files.column_names}:
        return []
    small = sorted(
        (*(file[name] or 0 for name in names), file["path"], file["size_bytes"])
        for file in files.select(["path", "size_bytes", *names]).to_pylist() if file["size_bytes"] < small_bytes
    )
    chosen = list[list[str]]()
    for _, of_incarnations in groupby(small, key=lambda file: file[:2]):
        chosen.append([])
        size = 0
        for *_, file, file_size in of_incarnations:
            size += file_size
            if size > 2 * small_bytes:
                chosen.append([])
                size = file_size
            chosen[-1].append(file)
    return [files for files in chosen if len(files) > 1]


@retry_on_conflict
def _merge(path: str, names: Collection[str], runner: TaskRunner) -> int:
    """Merge those of some files that the table still has into one; return how many there were."""
    table = open_table(path)
    files = list_files(table).select(["path", "size_bytes"]).to_pylist()
    merged = {file["path"]: file["size_bytes"] for file in files if file["path"] in names}
    if len(merged) < 2:
        return 0
    replace_files(path, table, merged, list(runner.run_all(partial(_write_merged, path), [tuple(merged)])))
    return len(merged)


def _write_merged(path: str, files: Collection[str]) -> EventFile:
    with EventFileWriter(path) as writer:
        for events in _ordered_events(path, files):
            writer.write(events)
    return writer.file


@dataclass(frozen=True, order=True)
class _RowGroup:
    """A row group of a file. No row of it has a position before ``least``."""

    least: tuple[int, int, int]
    file: str
    number: int

    def read(self, path: str) -> pa.Table:
        with open_event_file(path, self.file) as parquet:
            rows = parquet.read_row_group(self.number, EVENT_COLUMNS.names, use_threads=False)
        return as_plain_columns(rows, EVENT_COLUMNS.names)


def _row_groups(path: str, file: str) -> Iterator[_RowGroup]:
    with open_event_file(path, file) as parquet:
        for number in range(parquet.num_row_groups):
            low, _ = group_bounds(parquet.metadata.row_group(number), Position.COLUMNS)
            yield _RowGroup((low.get(INCARNATION, 0), low.get(LSN, 0), low.get(SEQ, 0)), file, number)


def _ordered_events(path: str, files: Collection[str]) -> Iterator[pa.Table]:
    """Yield the events of files in order of position: those that no row group which is still to be read precedes."""
    groups = sorted(group for file in files for group in _row_groups(path, file))
    waiting, size, limit = list[pa.Table](), 0, _ORDERED_BYTES
    for place, group in enumerate(groups):
        waiting.append(group.read(path))
        size += waiting[-1].nbytes
        is_last = place + 1 == len(groups)
        if size < limit and not is_last:
            continue
        rows = concat_by_position(waiting)
        count = rows.num_rows if is_last else _count_before(rows, groups[place + 1].least)
        yield rows.slice(0, count)
        waiting = [rows.slice(count)]
        size = waiting[0].nbytes
        # What waits is ordered once more with the next rows: wait for as many again.
        limit = max(_ORDERED_BYTES, 2 * size)


def _count_before(rows: pa.Table, position: tuple[int, int, int]) -> int:
    """Return how many events precede a position."""
    at = [rows[name].to_numpy() for name in Position.COLUMNS]
    return int(np.count_nonzero(is_older(at, [np.array(part) for part in position])))
