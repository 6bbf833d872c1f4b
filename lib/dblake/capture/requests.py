"""Dumps as documents: what is wanted, which the ``dump`` command writes, and how far it is, which capture writes.

A request and its progress are separate documents, so neither writer can overwrite the other's word. Promises: tables
of one dump, and one dump after another, are read in the order in which they were asked for; whatever was asked for and
is not finished stays pending across crashes of either side. Finished dumps keep their progress, not their request, and
that until a dump is asked for ``_KEPT`` later.
Carrying dumps out is ``dumps``' business.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from dblake.capture.documents import Document
from dblake.capture.progress import ProgressStore
from dblake.core.errors import ConfigError
from dblake.core.names import folder
from dblake.landing.control import DumpStart

Key = tuple[str, ...]

_REQUESTS, _PROGRESS, _THROTTLE = "dumps/requests", "dumps/progress", "dumps/throttle"
_KEPT = timedelta(days=30)


class State(StrEnum):
    """How a table's dump stands."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """True if nothing more will come of it."""
        return self in (State.DONE, State.CANCELLED, State.FAILED)


class Control(StrEnum):
    """What is wanted of a dump from now on."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """One table of one dump. ``number`` is its place in the dump; ``keys`` are canonical text, None for all rows.

    A higher ``priority`` comes first, also before what is being read.
    """

    id: str
    table: str
    number: int
    requested_at: str
    keys: tuple[Key, ...] | None = None
    control: Control = Control.RUN
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a table's keys, read in their order: those after ``after`` up to ``upto``, both None at an end.

    ``after`` moves on with each chunk whose window has landed; ``done`` once nothing is left.
    """

    after: Key | None = None
    upto: Key | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class DumpProgress:
    """How far it is. Counts chunks and rows whose windows have landed; without stretches it has not begun."""

    id: str
    table: str
    state: State = State.QUEUED
    chunks: int = 0
    rows: int = 0
    stretches: tuple[Stretch, ...] = ()
    began: DumpStart | None = None
    started_at: str | None = None
    finished_at: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DumpTask:
    """A request and its progress: what capture works on. The methods give the task as it stands afterwards."""

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
        """The keys asked for, or None for all rows."""
        return self.request.keys

    @property
    def priority(self) -> int:
        """Higher comes first."""
        return self.request.priority

    @property
    def chunks(self) -> int:
        """Chunks landed."""
        return self.progress.chunks

    @property
    def rows(self) -> int:
        """Rows in them."""
        return self.progress.rows

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What is left of it; none before it has begun."""
        return self.progress.stretches

    def running(self) -> DumpTask:
        """Started, or gone on with; the time of the first start is kept."""
        return self._moved(state=State.RUNNING, started_at=self.progress.started_at or _now())

    def divided(self, keys: Sequence[Key]) -> DumpTask:
        """Begun: in stretches that end at these keys, in key order, and one that ends with the table."""
        stretches = tuple(Stretch(after, upto) for after, upto in zip((None, *keys), (*keys, None), strict=True))
        return self._moved(stretches=stretches)

    def landed(self, stretch: int, rows: int, after: Key | None, *, done: bool, began: DumpStart) -> DumpTask:
        """One more chunk's window has landed, of this stretch, which goes on after a key or is done."""
        then, stretches = self.progress, list(self.progress.stretches)
        stretches[stretch] = replace(stretches[stretch], after=after, done=done)
        return self._moved(
            chunks=then.chunks + 1, rows=then.rows + rows, stretches=tuple(stretches),
            began=then.began.and_chunk(began) if then.began else began,
        )

    def paused(self) -> DumpTask:
        """Stopped where it is, to go on later."""
        return self._moved(state=State.PAUSED)

    def done(self) -> DumpTask:
        """All rows have landed."""
        return self._finished(State.DONE)

    def cancelled(self) -> DumpTask:
        """Given up because it was asked for."""
        return self._finished(State.CANCELLED)

    def failed(self, error: str) -> DumpTask:
        """Given up because it cannot be done. ``error`` never holds row values."""
        return self._finished(State.FAILED, error)

    def _finished(self, state: State, error: str | None = None) -> DumpTask:
        # Keys are values of rows: they are kept for no longer than somebody may go on from them.
        forgotten = tuple(Stretch(done=stretch.done) for stretch in self.progress.stretches)
        return self._moved(state=state, finished_at=_now(), error=error, stretches=forgotten)

    def _moved(self, **to: Any) -> DumpTask:
        return replace(self, progress=replace(self.progress, **to))


@dataclass(frozen=True, slots=True)
class Throttle:
    """What all dumps of the source keep to from now on; None leaves the configuration's value. See DumpSettings."""

    chunk_size: int | None = None
    delay: float | None = None
    share: float | None = None
    max_latency: float | None = None


def queue_dump(
    store: ProgressStore, tables: Sequence[str], keys: Sequence[Key] | None = None, *, priority: int = 0
) -> str:
    """Asks for a dump of ``tables`` in this order, or of some rows of each; returns its id, which sorts by time."""
    now = datetime.now(UTC)
    _forget(store, before=_id_at(now - _KEPT))
    dump_id = f"{_id_at(now)}-{secrets.token_hex(2)}"
    # Progress is the last key done, so none may come twice.
    wanted = None if keys is None else tuple(dict.fromkeys(keys))
    for number, table in enumerate(tables, start=1):
        _write_request(store, DumpRequest(dump_id, table, number, _text(now), wanted, priority=priority))
    return dump_id


def requests(store: ProgressStore) -> list[DumpRequest]:
    """All that was asked for and is not finished, paused and cancelled ones included, in order."""
    found = []
    for path in store.list(_REQUESTS):
        if document := store.read(path):
            found.append(_request(path, document))
    return sorted(found, key=lambda r: (-r.priority, r.requested_at, r.id, r.number))


def asked_for(store: ProgressStore) -> Sequence[str]:
    """The names of the requests there are: other names mean that ``pending`` is worth its price."""
    return store.list(_REQUESTS)


def direct(store: ProgressStore, request: DumpRequest, control: Control) -> None:
    """Says what is wanted of a dump from now on; capture heeds it before its next chunk."""
    _write_request(store, replace(request, control=control))


def pending(store: ProgressStore) -> list[DumpTask]:
    """What there is to do now, in order: neither paused nor finished. Closes the books of what was cancelled."""
    tasks = []
    for request in requests(store):
        task = DumpTask(request, _progress_of(store, request))
        if task.progress.state.final:
            store.delete(_path(_REQUESTS, request.id, request.table))
        elif request.control is Control.CANCEL:
            save_progress(store, task.cancelled())
        elif request.control is Control.RUN:
            tasks.append(task)
    return tasks


def control(store: ProgressStore, task: DumpTask) -> Control:
    """What is wanted of a task at this moment."""
    path = _path(_REQUESTS, task.id, task.table)
    document = store.read(path)
    return _request(path, document).control if document else Control.CANCEL


def save_progress(store: ProgressStore, task: DumpTask) -> DumpTask:
    """Keeps how far a task is, and returns it. A finished task is no longer pending."""
    store.write(_path(_PROGRESS, task.id, task.table), asdict(task.progress))
    if task.progress.state.final:
        store.delete(_path(_REQUESTS, task.id, task.table))
    return task


def status(store: ProgressStore) -> list[dict[str, Any]]:
    """Every dump of the last weeks, one entry a table, the oldest first. The fields are what scripts rely on."""
    entries = {}
    for path in store.list(_PROGRESS):
        if document := store.read(path):
            progress = _progress(path, document)
            entries[progress.id, progress.table] = (progress.id, 0, progress.table), progress
    for request in requests(store):
        progress = _progress_of(store, request)
        if not progress.state.final:
            progress = replace(progress, state=_directed(progress.state, request.control))
        entries[request.id, request.table] = (request.id, request.number, request.table), progress
    return [
        {
            "id": p.id, "table": p.table, "state": p.state.value, "chunks": p.chunks, "rows": p.rows,
            "started_at": p.started_at, "finished_at": p.finished_at, "error": p.error,
        }
        for _, p in sorted(entries.values(), key=lambda entry: entry[0])
    ]


def throttle(store: ProgressStore) -> Throttle:
    """What was last asked for with ``set_throttle``."""
    document = store.read(_THROTTLE)
    with _understood(_THROTTLE):
        return Throttle(**document) if document else Throttle()


def set_throttle(store: ProgressStore, wanted: Throttle) -> None:
    """Slows down or speeds up all dumps of the source, also those under way."""
    store.write(_THROTTLE, asdict(wanted))


def _directed(state: State, wanted: Control) -> State:
    """The state to show: what was asked for counts at once, though capture may not have heeded it yet."""
    if wanted is Control.CANCEL:
        return State.CANCELLED
    if wanted is Control.PAUSE:
        return State.PAUSED
    return State.QUEUED if state is State.PAUSED else state


def _id_at(moment: datetime) -> str:
    """How the id of a dump begins that was asked for then."""
    return f"{moment:%Y%m%d-%H%M%S}-{moment.microsecond // 1000:03d}"


def _forget(store: ProgressStore, *, before: str) -> None:
    """Deletes the progress of what was asked for before, and is finished."""
    oldest = f"{_PROGRESS}/{before}"
    for path in store.list(_PROGRESS):
        if path < oldest and (document := store.read(path)) and _progress(path, document).state.final:
            store.delete(path)


def _write_request(store: ProgressStore, request: DumpRequest) -> None:
    store.write(_path(_REQUESTS, request.id, request.table), asdict(request))


def _progress_of(store: ProgressStore, request: DumpRequest) -> DumpProgress:
    path = _path(_PROGRESS, request.id, request.table)
    document = store.read(path)
    return _progress(path, document) if document else DumpProgress(request.id, request.table)


def _request(path: str, document: Document) -> DumpRequest:
    with _understood(path):
        request = DumpRequest(**document)
        keys = None if request.keys is None else tuple(tuple(key) for key in request.keys)
        return replace(request, keys=keys, control=Control(request.control))


def _progress(path: str, document: Document) -> DumpProgress:
    with _understood(path):
        progress = DumpProgress(**document)
        return replace(
            progress, state=State(progress.state), began=DumpStart(**document["began"]) if document["began"] else None,
            stretches=tuple(
                Stretch(_key(part["after"]), _key(part["upto"]), part["done"]) for part in document["stretches"]
            ),
        )


def _key(values: Sequence[str] | None) -> Key | None:
    return None if values is None else tuple(values)


@contextmanager
def _understood(path: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"progress: the document {path} is not one this version understands",
            next_step="finish or cancel dumps with the version that queued them, or delete the document",
        ) from error


def _path(kind: str, dump_id: str, table: str) -> str:
    return f"{kind}/{dump_id}.{folder(table)}"


def _now() -> str:
    return _text(datetime.now(UTC))


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
