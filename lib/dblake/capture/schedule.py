"""What a dump's readers do next, and what has landed of it: the books of ``dumps``, without its threads.

Promises: tables begin by priority, then in the order in which they were asked for; of each stretch one chunk at a time
is read, and the next one before the last one's high watermark has landed; progress is saved only for chunks whose
window has landed, stretch by stretch in order, so a crash costs the chunks under way and nothing else. Any thread may
call any method.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dblake.capture.progress import ProgressStore
from dblake.capture.requests import Control, DumpTask, Key, asked_for, control, pending, save_progress
from dblake.capture.windows import OpenChunk
from dblake.core.failpoints import failpoint
from dblake.landing.control import DumpStart

_AHEAD = 64
"""Chunks read whose windows have not landed yet; what they weigh is bounded by the batch they wait to enter."""
_QUEUE_SECONDS = 2.0
"""How old the known queue of dumps may get."""
_MOST_DISCARDS = 10
"""So many chunks discarded in a row mean that the table cannot be dumped as things are."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Lane:
    """A stretch of a table, read by one reader at a time. ``after`` is where its next chunk starts.

    Of a table that has not begun it is the whole, to be divided first. Of one whose rows have all landed it is the end,
    and ``closes`` says where the dump began: one chunk more, of no rows.
    """

    reading: _Reading
    stretch: int
    after: Key | None
    upto: Key | None
    exhausted: bool = False
    closes: DumpStart | None = None
    busy: bool = False
    went_back: bool = False
    """While busy: the chunk being read comes after one that was discarded."""
    row_bytes: float | None = None
    """What a row of the last chunk weighed."""
    under_way: deque[_UnderWay] = field(default_factory=deque)

    @property
    def task(self) -> DumpTask:
        """The table's dump, with what has landed of it."""
        return self.reading.task


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A chunk that was read, where it started, and what is left of its stretch after it."""

    chunk: OpenChunk
    start: Key | None
    after: Key | None
    exhausted: bool


@dataclass(slots=True, eq=False)
class _Reading:
    """A table being dumped. ``task`` knows what has landed, ``unsaved`` that the progress kept knows less."""

    task: DumpTask
    chunks: int
    lanes: list[Lane] = field(default_factory=list)
    wanted: Control = Control.RUN
    discards: int = 0
    unsaved: bool = False

    @property
    def at_work(self) -> bool:
        return any(lane.busy or lane.under_way for lane in self.lanes)

    @property
    def landed(self) -> bool:
        """True once all rows have."""
        return bool(self.task.stretches) and all(lane.exhausted for lane in self.lanes) and not self.at_work

    @property
    def closed(self) -> bool:
        """True once its end has landed too; given keys have none."""
        return self.landed and (self.task.keys is not None or any(lane.closes for lane in self.lanes))

    def close(self) -> None:
        """Makes the end what there is to read next."""
        self.lanes.append(Lane(self, len(self.lanes), None, None, closes=self.task.progress.began))


class Schedule:
    """Which stretch of which table is read next.

    ``idle`` if nothing is asked for or under way, ``reading`` unless every reader was told that there is nothing to do.
    """

    def __init__(self, store: ProgressStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._lanes: dict[str, Lane] = {}
        self._queue: deque[DumpTask] = deque()
        self._looked = float("-inf")
        self._names: list[str] = []
        self._arrivals: queue.SimpleQueue[OpenChunk] = queue.SimpleQueue()
        self._early: dict[str, OpenChunk] = {}
        self._arrived = threading.Event()
        self.idle = False
        self.reading = True

    def next(self, *, stopping: bool) -> Lane | None:
        """A stretch to read a chunk of, for this caller alone until it says what became of it; None for now."""
        with self._lock:
            self._take_arrivals()
            self._close_books(stopping=stopping)
            lane = None if stopping or len(self._lanes) >= _AHEAD else self._next_lane()
            if lane:
                lane.busy = True
            self.reading = self._somebody_reads()
            self.idle = lane is None and not self._readings
            return lane

    def ended(self) -> bool:
        """True if nothing of any table is under way any more."""
        with self._lock:
            return not self._readings

    def wait(self, seconds: float) -> None:
        """Until a chunk lands, or so long."""
        self._arrived.wait(seconds)
        self._arrived.clear()

    def number(self, lane: Lane) -> int:
        """The next chunk's number in its table's dump."""
        with self._lock:
            lane.reading.chunks += 1
            return lane.reading.chunks

    def divided(self, lane: Lane, keys: Sequence[Key]) -> None:
        """The lane's table is read in stretches that end at these keys."""
        with self._lock:
            reading = lane.reading
            reading.task = save_progress(self._store, reading.task.divided(keys))
            reading.lanes = _lanes(reading)
            if len(keys):
                logger.info("table %s is read in %d stretches", reading.task.table, len(reading.lanes))

    def read(self, lane: Lane, chunk: OpenChunk, after: Key | None, *, exhausted: bool) -> None:
        """A chunk of the lane was read; the next one starts after this key, or there is none."""
        with self._lock:
            went_back, lane.busy, lane.went_back = lane.went_back, False, False
            if self._known(lane) and not went_back:
                lane.under_way.append(_UnderWay(chunk, lane.after, after, exhausted))
                lane.after, lane.exhausted = after, exhausted
                self._lanes[chunk.chunk_id] = lane
            if early := self._early.pop(chunk.chunk_id, None):
                self._arrivals.put(early)

    def failed(self, lane: Lane, why: str) -> None:
        """The lane's table cannot be dumped."""
        with self._lock:
            lane.busy = False
            self._fail(lane.reading, why)

    def asked(self) -> None:
        """Tells that a dump was asked for: there is something to do, whatever was found before."""
        with self._lock:
            self.idle, self._looked = False, float("-inf")

    def landed(self, chunk: OpenChunk) -> None:
        """Tells that a chunk's window has landed. Never waits."""
        self._arrivals.put(chunk)
        self._arrived.set()

    def _next_lane(self) -> Lane | None:
        self._look()
        while True:
            ahead = self._queue[0].priority if self._queue else None
            for reading in sorted(self._readings.values(), key=lambda r: -r.task.priority):
                free = next((lane for lane in reading.lanes if not lane.busy and not lane.exhausted), None)
                if ahead is not None and ahead > reading.task.priority:
                    break
                if free and reading.wanted is Control.RUN:
                    reading.wanted = control(self._store, reading.task)
                    if reading.wanted is Control.RUN:
                        return free
            if ahead is None:
                return None
            task = self._queue.popleft()
            if control(self._store, task) is Control.RUN:
                self._begin(task)

    def _begin(self, task: DumpTask) -> None:
        logger.info("dump %s of %s starts after %d chunks", task.id, task.table, task.chunks)
        reading = _Reading(save_progress(self._store, task.running()), chunks=task.chunks)
        reading.lanes = _lanes(reading)
        self._readings[task.id, task.table] = reading

    def _look(self) -> None:
        """Brings the known queue up to date, now and then, and whenever there is nothing else to do."""
        if time.monotonic() - self._looked < (_QUEUE_SECONDS if self._readings else 0.0):
            return
        names = list(asked_for(self._store))
        if not self._queue or names != self._names:
            self._queue = deque(t for t in pending(self._store) if (t.id, t.table) not in self._readings)
        self._looked, self._names = time.monotonic(), names

    def _close_books(self, *, stopping: bool) -> None:
        """Ends the tables of which nothing is under way and nothing more is to be read."""
        for key, reading in list(self._readings.items()):
            if reading.landed and not reading.closed and not stopping and reading.wanted is Control.RUN:
                reading.close()
            if reading.at_work or not (stopping or reading.closed or reading.wanted is not Control.RUN):
                continue
            del self._readings[key]
            if reading.closed:
                done = save_progress(self._store, reading.task.done())
                logger.info("dump %s of %s is done: %d rows", done.id, done.table, done.rows)
            elif reading.wanted is Control.PAUSE:
                save_progress(self._store, reading.task.paused())
            elif reading.wanted is Control.CANCEL:  # or the request was lost with the store
                save_progress(self._store, reading.task.cancelled())

    def _take_arrivals(self) -> None:
        """Saves progress for the chunks whose windows have landed, once for all that landed together."""
        if not self._somebody_reads():
            self._early.clear()
        while True:
            try:
                chunk = self._arrivals.get_nowait()
            except queue.Empty:
                break
            lane = self._lanes.pop(chunk.chunk_id, None)
            if lane is None and self._somebody_reads():
                self._early[chunk.chunk_id] = chunk  # its reader may have yet to say that it has read it
                continue
            if lane is None or not self._known(lane):
                continue  # read after a chunk that was discarded: its rows count, but it is read once more
            first = lane.under_way.popleft()
            assert first.chunk is chunk and chunk.read is not None, "high watermarks come in the order of chunks"
            reading = lane.reading
            if chunk.discarded:
                self._go_back(lane, first)
                continue
            reading.discards = 0
            if lane.closes:
                continue
            assert chunk.low is not None, "without a low watermark it is discarded"
            began = DumpStart(chunk.low.incarnation, chunk.low.lsn, chunk.low.seq, chunk.read.snapshot)
            reading.task = reading.task.landed(
                lane.stretch, chunk.read.rows, first.after, done=first.exhausted, began=began
            )
            reading.unsaved = True
        for reading in self._readings.values():
            if reading.unsaved:
                failpoint("dump.before_progress")
                save_progress(self._store, reading.task)
                reading.unsaved = False
                failpoint("dump.progress_saved")

    def _somebody_reads(self) -> bool:
        return any(lane.busy for reading in self._readings.values() for lane in reading.lanes)

    def _go_back(self, lane: Lane, discarded: _UnderWay) -> None:
        """Makes a discarded chunk the next one of its stretch to be read."""
        chunk, reading = discarded.chunk, lane.reading
        logger.warning("chunk %d of %s was discarded: %s", chunk.number, chunk.table, chunk.discarded)
        self._drop(lane)
        lane.after, lane.exhausted, lane.went_back = discarded.start, False, lane.busy
        reading.discards += 1
        if reading.discards >= _MOST_DISCARDS:
            self._fail(reading, f"{_MOST_DISCARDS} chunks in a row were discarded; the ledger of windows says why")

    def _fail(self, reading: _Reading, why: str) -> None:
        if self._readings.pop((reading.task.id, reading.task.table), None) is reading:
            logger.error("dump %s of %s failed: %s", reading.task.id, reading.task.table, why)
            save_progress(self._store, reading.task.failed(why))
            for lane in reading.lanes:
                self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        for later in lane.under_way:
            self._lanes.pop(later.chunk.chunk_id, None)
        lane.under_way.clear()

    def _known(self, lane: Lane) -> bool:
        return self._readings.get((lane.task.id, lane.task.table)) is lane.reading


def _lanes(reading: _Reading) -> list[Lane]:
    stretches = reading.task.stretches
    if not stretches:
        return [Lane(reading, 0, None, None)]
    return [Lane(reading, at, s.after, s.upto, exhausted=s.done) for at, s in enumerate(stretches)]
