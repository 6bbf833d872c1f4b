"""The schedule of dumps: which key range a chunk reader reads next, and what of it has landed. Without threads.

Guarantees: tables start by priority, then in the order in which they were requested. Of each key range one chunk at a
time is read; the next one may be read before the last one's high watermark has landed. Progress is saved only for
chunks whose window has landed, range by range in order, so a crash costs the pending chunks and nothing else. Any
thread may call any method.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

from dblake.base.core.errors import ReplicaLags, TableLocked, TableUnreadable
from dblake.base.core.failpoints import failpoint
from dblake.ingest.capture.dump_queue import paused_imports, pending_tasks, read_control, request_ids, save_progress
from dblake.ingest.capture.dump_task import DumpControl, DumpTask, Key
from dblake.ingest.capture.import_checks import why_outdated
from dblake.ingest.capture.open_chunk import OpenChunk
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.table_dump import PendingChunk, RangeReader, TableDump

_MAX_PENDING_CHUNKS = 64
"""Chunks read whose windows have not landed. The batch they wait to enter bounds their size."""
_QUEUE_SECONDS = 2.0
"""The maximum age of the known queue while a table is being read."""
_MAX_FAILURES = 5
"""After so many errors in a row of reading its chunks the table's dump fails."""
_MAX_PUT_OFF_SECONDS = 10.0
_MAX_DISCARDS = 10
"""After so many discarded chunks in a row the table's dump fails."""

logger = logging.getLogger(__name__)


class Schedule:
    """Assigns key ranges to chunk readers and saves the progress of landed chunks.

    ``is_idle``: no dump is queued or running, as of the last ``next_range``. ``is_reading``: at least one reader is
    reading a chunk.
    """

    def __init__(self, store: ProgressStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._dumps: dict[tuple[str, str], TableDump] = {}
        self._ranges: dict[str, RangeReader] = {}
        self._queue: deque[DumpTask] = deque()
        self._queue_read_at = float("-inf")
        self._request_ids: list[str] = []
        self._landed: queue.SimpleQueue[OpenChunk] = queue.SimpleQueue()
        self._landed_before_read: dict[str, OpenChunk] = {}
        self._has_landed = threading.Event()
        self.is_idle = False
        self.is_reading = True

    def next_range(self, *, stopping: bool, is_paused: bool = False) -> RangeReader | None:
        """Return a range to read a chunk of, or None for now.

        The range belongs to the caller until it calls ``split``, ``add_chunk`` or ``fail``. With ``stopping`` no chunk
        is started, and tables without pending chunks end; while ``is_paused`` no chunk is started, and they stay.
        """
        with self._lock:
            self._save_landed_chunks()
            self._finish_tables(stopping=stopping)
            is_held = stopping or is_paused or len(self._ranges) >= _MAX_PENDING_CHUNKS
            part = None if is_held else self._pick_range()
            if part:
                part.is_reading = True
            self.is_reading = self._is_any_reading()
            self.is_idle = part is None and not self._dumps
            return part

    def is_finished(self) -> bool:
        """Return True if no table is being dumped."""
        with self._lock:
            return not self._dumps

    def wait(self, seconds: float) -> None:
        """Wait until a chunk lands, for at most ``seconds``."""
        self._has_landed.wait(seconds)
        self._has_landed.clear()

    def next_number(self, part: RangeReader) -> int:
        """Return the next chunk's number in its table's dump, from 1."""
        with self._lock:
            part.dump.chunks += 1
            return part.dump.chunks

    def split(self, part: RangeReader, keys: Sequence[Key]) -> None:
        """Split the range's table into ranges that end at ``keys``, and save that."""
        with self._lock:
            dump = part.dump
            dump.task = save_progress(self._store, dump.task.split_at(keys))
            dump.reset_ranges()
            if len(keys):
                logger.info("table %s is read in %d key ranges", dump.task.table, len(dump.ranges))

    def add_chunk(self, part: RangeReader, chunk: OpenChunk, after: Key | None, *, exhausted: bool) -> None:
        """Record that a chunk of the range was read; its next one starts after a key, or there is none."""
        with self._lock:
            rewound, part.is_reading, part.rewound = part.rewound, False, False
            part.dump.failures, part.dump.put_off_for = 0, ""
            if self._is_current(part) and not rewound:
                part.pending.append(PendingChunk(chunk, part.after, after, exhausted))
                part.after, part.exhausted = after, exhausted
                self._ranges[chunk.chunk_id] = part
            if landed := self._landed_before_read.pop(chunk.chunk_id, None):
                self._landed.put(landed)

    def put_off(self, part: RangeReader, error: TableUnreadable) -> None:
        """Read the range's next chunk later, after other tables; fail its dump after several errors of the table."""
        with self._lock:
            part.is_reading, dump = False, part.dump
            passes = isinstance(error, (TableLocked, ReplicaLags))
            if not passes or dump.put_off_for != error.what:
                logger.warning("dump %s is put off: %s", dump.task.id, error.what)
            dump.put_off_for, dump.failures = error.what, dump.failures + (not passes)
            if dump.failures >= _MAX_FAILURES:
                self._fail(dump, error.what)
            dump.resumes_at = time.monotonic() + min(0.2 * 2**dump.failures, _MAX_PUT_OFF_SECONDS)

    def release(self, part: RangeReader) -> None:
        """Return a range of which no chunk was read."""
        with self._lock:
            part.is_reading = False

    def fail(self, part: RangeReader, why: str) -> None:
        """Fail the dump of the range's table."""
        with self._lock:
            part.is_reading = False
            self._fail(part.dump, why)

    def on_dump_queued(self) -> None:
        """Reread the queue at the next opportunity."""
        with self._lock:
            self.is_idle, self._queue_read_at = False, float("-inf")

    def on_landed(self, chunk: OpenChunk) -> None:
        """Record that a chunk's window has landed. Never blocks."""
        self._landed.put(chunk)
        self._has_landed.set()

    def _pick_range(self) -> RangeReader | None:
        self._refresh_queue()
        while True:
            queued = self._queue[0].priority if self._queue else None
            for dump in sorted(self._dumps.values(), key=lambda d: -d.task.priority):
                if queued is not None and queued > dump.task.priority:
                    break
                part = dump.free_range()
                if part and dump.control is DumpControl.RUN:
                    dump.control = read_control(self._store, dump.task)
                    self._mark_outdated(dump)
                    if dump.control is DumpControl.RUN and not dump.outdated:
                        return part
            if queued is None or self._is_import_ending(self._queue[0]):
                return None
            task = self._queue.popleft()
            if read_control(self._store, task) is DumpControl.RUN:
                self._start(task)

    def _mark_outdated(self, dump: TableDump) -> None:
        """Note why an import that is being read must fail, if it must: its pending chunks land first."""
        if dump.task.request.imported and not dump.outdated:
            dump.outdated = why_outdated(self._store, dump.task)

    def _is_import_ending(self, task: DumpTask) -> bool:
        """Return True while an import of a task's table has pending chunks, which the task's rows must follow."""
        for dump in self._dumps.values():
            if dump.task.table == task.table and dump.task.request.imported:
                self._mark_outdated(dump)
                return True
        return False

    def _fail_paused_imports(self) -> None:
        """Fail the paused imports that must not go on, without waiting until someone resumes them."""
        for task in paused_imports(self._store):
            why = why_outdated(self._store, task) if (task.id, task.table) not in self._dumps else None
            if why:
                logger.error("dump %s of %s failed: %s", task.id, task.table, why)
                save_progress(self._store, task.fail(why))

    def _start(self, task: DumpTask) -> None:
        logger.info("dump %s of %s starts after %d chunks", task.id, task.table, task.chunks)
        dump = TableDump(save_progress(self._store, task.start()), chunks=task.chunks)
        dump.reset_ranges()
        self._dumps[dump.key] = dump

    def _refresh_queue(self) -> None:
        """Reread the queue if it is too old, or if no table is being dumped."""
        if time.monotonic() - self._queue_read_at < (_QUEUE_SECONDS if self._dumps else 0.0):
            return
        ids = list(request_ids(self._store))
        if ids != self._request_ids:
            self._fail_paused_imports()
        if not self._queue or ids != self._request_ids:
            self._queue = deque(t for t in pending_tasks(self._store) if (t.id, t.table) not in self._dumps)
        self._queue_read_at, self._request_ids = time.monotonic(), ids

    def _finish_tables(self, *, stopping: bool) -> None:
        """Save the end of each table that has no pending chunk and of which no chunk will be read."""
        for key, dump in list(self._dumps.items()):
            goes_on = not stopping and dump.control is DumpControl.RUN and not dump.outdated
            if dump.has_landed and not dump.is_closed and goes_on:
                dump.add_closing_range()
            if dump.is_busy or (goes_on and not dump.is_closed):
                continue
            if dump.outdated and not dump.is_closed:
                self._fail(dump, dump.outdated)
                continue
            del self._dumps[key]
            if dump.is_closed:
                done = save_progress(self._store, dump.task.complete())
                logger.info("dump %s of %s is done: %d rows", done.id, done.table, done.rows)
            elif dump.control is DumpControl.PAUSE:
                save_progress(self._store, dump.task.pause())
            elif dump.control is DumpControl.CANCEL:  # or the request was lost with the store
                save_progress(self._store, dump.task.cancel())

    def _save_landed_chunks(self) -> None:
        """Save progress for the chunks whose windows have landed, once per table."""
        if not self._is_any_reading():
            self._landed_before_read.clear()
        while True:
            try:
                chunk = self._landed.get_nowait()
            except queue.Empty:
                break
            part = self._ranges.pop(chunk.chunk_id, None)
            if part is None and self._is_any_reading():
                self._landed_before_read[chunk.chunk_id] = chunk  # its reader may not have called add_chunk yet
            elif part is not None and self._is_current(part):  # else it follows a discarded chunk and is read again
                self._count_landed(part, chunk)
        for dump in self._dumps.values():
            if dump.unsaved:
                failpoint("dump.before_progress")
                save_progress(self._store, dump.task)
                dump.unsaved = False
                failpoint("dump.progress_saved")

    def _count_landed(self, part: RangeReader, chunk: OpenChunk) -> None:
        """Add a landed chunk to its table's progress, or rewind its range if the chunk was discarded."""
        first, dump = part.pending.popleft(), part.dump
        assert first.chunk is chunk and chunk.read is not None, "high watermarks come in the order of chunks"
        if chunk.discarded:
            self._rewind(part, first)
            return
        dump.discards = 0
        if part.closes:
            return
        began = chunk.start
        assert began is not None, "without a low watermark it is discarded"
        dump.task = dump.task.add_chunk(
            part.number, chunk.read.rows, first.after, done=first.exhausted, began=began
        )
        dump.unsaved = True

    def _is_any_reading(self) -> bool:
        return any(part.is_reading for dump in self._dumps.values() for part in dump.ranges)

    def _rewind(self, part: RangeReader, discarded: PendingChunk) -> None:
        """Make a discarded chunk the next one of its range to be read."""
        chunk, dump = discarded.chunk, part.dump
        logger.warning("chunk %d of %s was discarded: %s", chunk.number, chunk.table, chunk.discarded)
        self._drop_pending(part)
        part.after, part.exhausted, part.rewound = discarded.start, False, part.is_reading
        dump.discards += 1
        if dump.discards >= _MAX_DISCARDS:
            self._fail(dump, f"{_MAX_DISCARDS} chunks in a row were discarded; the window ledger names the reasons")

    def _fail(self, dump: TableDump, why: str) -> None:
        if self._dumps.pop(dump.key, None) is dump:
            logger.error("dump %s of %s failed: %s", dump.task.id, dump.task.table, why)
            save_progress(self._store, dump.task.fail(why))
            for part in dump.ranges:
                self._drop_pending(part)

    def _drop_pending(self, part: RangeReader) -> None:
        for later in part.pending:
            self._ranges.pop(later.chunk.chunk_id, None)
        part.pending.clear()

    def _is_current(self, part: RangeReader) -> bool:
        """Return True unless the range's table has ended, or was started once more, since the range was assigned."""
        return self._dumps.get(part.dump.key) is part.dump
