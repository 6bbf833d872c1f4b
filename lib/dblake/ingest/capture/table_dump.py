"""A table that is being dumped: its key ranges, and the chunks that are read and have not landed.

Plain state of ``schedule``, which holds the lock and saves progress.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from dblake.ingest.capture.dump_task import DumpControl, DumpTask, Key
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.ingest.imports.reader import FileRows
from dblake.landing.control import DumpStart


@dataclass(slots=True, eq=False)
class PendingChunk:
    """A chunk that was read and whose window has not landed.

    ``start`` is the key it was read after, ``after`` the key after which its range resumes; ``exhausted`` if the range
    has no rows left then.
    """

    chunk: OpenChunk
    start: Key | None
    after: Key | None
    exhausted: bool


@dataclass(slots=True, eq=False)
class RangeReader:
    """One key range of a table, read by one chunk reader at a time. ``after`` is where its next chunk starts.

    For a table that has not started, the only range is the whole table, to be split first. After all rows have landed,
    ``closes`` is where the dump began: the range of one last chunk without rows. ``rewound`` while the chunk being read
    follows a chunk that was discarded. ``row_bytes`` is the average payload of a row in the last chunk, in bytes.
    ``files`` are those of an import, once a chunk of them was read.
    """

    dump: TableDump
    number: int
    after: Key | None
    upto: Key | None
    exhausted: bool = False
    closes: DumpStart | None = None
    is_reading: bool = False
    rewound: bool = False
    row_bytes: float | None = None
    files: FileRows | None = None
    pending: deque[PendingChunk] = field(default_factory=deque)

    @property
    def task(self) -> DumpTask:
        """The table's dump, with the progress of what has landed."""
        return self.dump.task


@dataclass(slots=True, eq=False)
class TableDump:
    """A table being dumped. ``chunks`` counts the chunks read, ``discards`` those discarded in a row.

    ``failures`` counts the errors of reading chunks in a row, ``put_off_for`` is the last one, and no chunk is read
    before ``resumes_at`` by the monotonic clock. ``unsaved``: ``task`` holds progress that is not in the store yet.
    ``outdated`` is why an import is to fail once its pending chunks have landed.
    """

    task: DumpTask
    chunks: int
    ranges: list[RangeReader] = field(default_factory=list)
    control: DumpControl = DumpControl.RUN
    discards: int = 0
    failures: int = 0
    put_off_for: str = ""
    resumes_at: float = 0.0
    unsaved: bool = False
    outdated: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The dump's id and the table."""
        return self.task.id, self.task.table

    @property
    def is_busy(self) -> bool:
        """True while a chunk is being read or has not landed."""
        return any(part.is_reading or part.pending for part in self.ranges)

    @property
    def has_landed(self) -> bool:
        """True once all rows have landed."""
        return bool(self.task.ranges) and all(part.exhausted for part in self.ranges) and not self.is_busy

    @property
    def is_closed(self) -> bool:
        """True once the last chunk has landed too, if the dump has one."""
        return self.has_landed and (not self.task.has_last_chunk or any(part.closes for part in self.ranges))

    def reset_ranges(self) -> None:
        """Build the ranges from the task's progress."""
        saved = self.task.ranges
        self.ranges = [
            RangeReader(self, number, part.after, part.upto, exhausted=part.done) for number, part in enumerate(saved)
        ] or [RangeReader(self, 0, None, None)]

    def add_closing_range(self) -> None:
        """Add the range of the last chunk, which has no rows."""
        self.ranges.append(RangeReader(self, len(self.ranges), None, None, closes=self.task.progress.began))

    def free_range(self) -> RangeReader | None:
        """Return a range of which a chunk can be read now, or None."""
        if time.monotonic() < self.resumes_at:
            return None
        return next((part for part in self.ranges if not part.is_reading and not part.exhausted), None)
