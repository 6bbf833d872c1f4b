"""One table's dump: what is requested, its progress, and the states it passes through.

A request (written by the ``dump`` command) and its progress (written by capture) are separate documents, so neither
writer can overwrite the other's. Guarantees: every value here is immutable, and a finished dump holds no key values.
Where the documents are stored is ``dump_queue``'s business; reading the rows is ``dumps``'.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from dblake.ingest.capture.documents import Document, document_errors
from dblake.ingest.imports.spec import ImportSpec
from dblake.landing.control import DumpStart

Key = tuple[str, ...]
"""A primary key's values as canonical text, in key order."""

TABLE_SUSPENDED = "the table is suspended"
"""How the error of a dump begins that was due while its table was suspended."""
_NEXT_STEP = "finish or cancel dumps with the version that queued them, or delete the document"
_RANGES = "stretches"
"""The name of a progress document's list of key ranges; documents outlive versions, so it stays."""


class DumpState(StrEnum):
    """The state of one table's dump."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """True if the dump reads nothing more."""
        return self in (DumpState.DONE, DumpState.CANCELLED, DumpState.FAILED)


class DumpControl(StrEnum):
    """What the ``dump`` command requests of a dump from now on."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """One table of one dump. ``number`` orders the tables of a dump; ``keys`` is None for the whole table.

    A higher ``priority`` is read first, and preempts a table that is being read between two chunks. With ``verify`` the
    rows land to be compared, not as data, and only about the share ``sample`` of the table's key ranges is read. With
    ``removes`` those of the ``keys`` that no longer exist are deleted. ``max_removed`` is the share of the table's rows
    that the end of a whole table's dump may delete; None is all. With ``imported`` the rows come from files instead;
    ``earlier_dumps`` are the table's dumps from before then, None in a document of a version that did not save them.
    """

    id: str
    table: str
    number: int
    requested_at: str
    keys: tuple[Key, ...] | None = None
    control: DumpControl = DumpControl.RUN
    priority: int = 0
    verify: bool = False
    sample: float = 1.0
    removes: bool = False
    max_removed: float | None = None
    imported: ImportSpec | None = None
    earlier_dumps: tuple[str, ...] | None = None

    def is_older_than(self, dump_id: str) -> bool:
        """Return True if another dump of the table was queued after this one."""
        if self.earlier_dumps is None:
            return dump_id > self.id
        return dump_id != self.id and dump_id not in self.earlier_dumps

    def to_document(self) -> Document:
        """Return the request as a progress document; options that are not set are left out."""
        defaults = {"verify": False, "sample": 1.0, "removes": False, "max_removed": None, "imported": None,
                    "earlier_dumps": None}
        return {name: value for name, value in asdict(self).items() if defaults.get(name, ...) != value}

    @classmethod
    def from_document(cls, path: str, document: Document) -> DumpRequest:
        """Return the request of ``to_document``. Raises ConfigError, which names ``path``, for anything else."""
        with document_errors(path, _NEXT_STEP):
            request = cls(**document)
            keys = None if request.keys is None else tuple(tuple(key) for key in request.keys)
            imported = document.get("imported")
            return replace(
                request, keys=keys, control=DumpControl(request.control),
                earlier_dumps=None if request.earlier_dumps is None else tuple(request.earlier_dumps),
                imported=None if imported is None else ImportSpec.from_document(imported),
            )


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of a table's keys, read in key order: after ``after`` up to and including ``upto``; None is an open end.

    ``after`` advances with each chunk whose window has landed; ``done`` once the range has no rows left.
    """

    after: Key | None = None
    upto: Key | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class DumpProgress:
    """The progress of one table's dump. Counts chunks and rows whose windows have landed; no ranges: not started.

    ``began`` is the earliest low watermark of its chunks; times are UTC in ISO 8601. ``verify`` is the request's;
    ``whole`` if every row of the table is dumped.
    """

    id: str
    table: str
    state: DumpState = DumpState.QUEUED
    chunks: int = 0
    rows: int = 0
    ranges: tuple[KeyRange, ...] = ()
    began: DumpStart | None = None
    started_at: str | None = None
    finished_at: str | None = None
    error: str | None = None
    verify: bool = False
    whole: bool = True

    def to_document(self) -> Document:
        """Return the progress as a document."""
        document = asdict(self)
        document[_RANGES] = document.pop("ranges")
        if not self.verify:
            del document["verify"]
        return document

    @classmethod
    def from_document(cls, path: str, document: Document) -> DumpProgress:
        """Return the progress of ``to_document``. Raises ConfigError, which names ``path``, for anything else."""
        with document_errors(path, _NEXT_STEP):
            fields = dict(document)
            ranges = tuple(
                KeyRange(_key(part["after"]), _key(part["upto"]), part["done"]) for part in fields.pop(_RANGES)
            )
            began = DumpStart(**fields["began"]) if fields["began"] else None
            return cls(**fields | {"state": DumpState(fields["state"]), "ranges": ranges, "began": began})


@dataclass(frozen=True, slots=True)
class DumpTask:
    """A request with its progress: the unit that capture works on. The methods return the task in its next state."""

    request: DumpRequest
    progress: DumpProgress

    @property
    def id(self) -> str:
        """The dump's id."""
        return self.request.id

    @property
    def table(self) -> str:
        """The table's qualified name."""
        return self.request.table

    @property
    def keys(self) -> tuple[Key, ...] | None:
        """The requested keys, or None for the whole table."""
        return self.request.keys

    @property
    def is_whole_dump(self) -> bool:
        """True for a dump of the whole table; False for given keys, and for a verification."""
        return self.keys is None and not self.request.verify

    @property
    def reads_whole_table(self) -> bool:
        """True for a dump of the whole table from the source: it returns what is there once it starts."""
        return self.is_whole_dump and self.request.imported is None

    @property
    def has_last_chunk(self) -> bool:
        """True if an empty chunk follows all others: what was not returned until then does not exist."""
        return self.keys is None or self.request.verify or self.request.removes

    @property
    def is_divisible(self) -> bool:
        """True if the rows can be read in several key ranges."""
        return self.keys is None and self.request.imported is None

    @property
    def is_sampled(self) -> bool:
        """True if some key ranges of the table are not read."""
        return self.request.sample < 1.0

    @property
    def priority(self) -> int:
        """The request's priority; higher is read first."""
        return self.request.priority

    @property
    def chunks(self) -> int:
        """Chunks whose windows have landed."""
        return self.progress.chunks

    @property
    def rows(self) -> int:
        """Rows of those chunks."""
        return self.progress.rows

    @property
    def ranges(self) -> tuple[KeyRange, ...]:
        """The key ranges with what is left of each; empty before the dump has started."""
        return self.progress.ranges

    def start(self) -> DumpTask:
        """Return the task as running; a resumed task keeps the time of its first start."""
        return self._with(
            state=DumpState.RUNNING, started_at=self.progress.started_at or now_text(), whole=self.is_whole_dump
        )

    def split_at(self, keys: Sequence[Key]) -> DumpTask:
        """Return the task with one range up to each of ``keys``, in key order, and one up to the table's end.

        A sampled task reads a random choice of them; the others are done.
        """
        bounds = list(zip((None, *keys), (*keys, None), strict=True))
        count = max(round(len(bounds) * self.request.sample), 1)
        chosen = set(random.sample(range(len(bounds)), min(count, len(bounds))))
        return self._with(ranges=tuple(
            KeyRange(after, upto) if number in chosen else KeyRange(done=True)
            for number, (after, upto) in enumerate(bounds)
        ))

    def add_chunk(self, number: int, rows: int, after: Key | None, *, done: bool, began: DumpStart) -> DumpTask:
        """Return the task with one more landed chunk of range ``number``, which resumes after a key or is done."""
        progress, ranges = self.progress, list(self.progress.ranges)
        ranges[number] = replace(ranges[number], after=after, done=done)
        return self._with(
            chunks=progress.chunks + 1, rows=progress.rows + rows, ranges=tuple(ranges),
            began=progress.began.and_chunk(began) if progress.began else began,
        )

    def pause(self) -> DumpTask:
        """Return the task as paused, to be resumed after its last landed chunk."""
        return self._with(state=DumpState.PAUSED)

    def complete(self) -> DumpTask:
        """Return the task as done: all rows have landed."""
        return self._finish(DumpState.DONE)

    def cancel(self) -> DumpTask:
        """Return the task as cancelled by request."""
        return self._finish(DumpState.CANCELLED)

    def fail(self, error: str) -> DumpTask:
        """Return the task as failed. ``error`` never holds row values."""
        return self._finish(DumpState.FAILED, error)

    def _finish(self, state: DumpState, error: str | None = None) -> DumpTask:
        # Keys are row values: a dump that cannot be resumed stores none.
        without_keys = tuple(KeyRange(done=part.done) for part in self.progress.ranges)
        return self._with(state=state, finished_at=now_text(), error=error, ranges=without_keys)

    def _with(self, **changes: Any) -> DumpTask:
        return replace(self, progress=replace(self.progress, **changes))


def now_text() -> str:
    """Return the current time as documents hold it: UTC, ISO 8601 with microseconds."""
    return time_text(datetime.now(UTC))


def time_text(moment: datetime) -> str:
    """Return a UTC time as documents hold it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _key(values: Sequence[str] | None) -> Key | None:
    return None if values is None else tuple(values)
