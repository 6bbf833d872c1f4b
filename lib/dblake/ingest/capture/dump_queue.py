"""The queue of dumps in the progress store: the ``dump`` command writes requests, capture writes their progress.

Guarantees: tables of one dump, and one dump after another, are read by priority and then in the order in which they
were requested; a request stays pending across crashes of either side until its dump is finished. A finished dump keeps
its progress document, but not its request, until a dump is queued more than ``_KEPT`` later. Each machine that queues
dumps has its own clock. Clocks that differ change the order of reading and of listing, and when old documents are
deleted. No dump's result depends on them: a dump is exact whenever it is read, and an import knows the dumps before it.
Reading the tables is left to ``dumps``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dblake.base.core.names import folder
from dblake.base.core.position import Position
from dblake.ingest.capture.dump_task import DumpControl, DumpProgress, DumpRequest, DumpState, DumpTask, Key, time_text
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.imports.spec import ImportSpec

_REQUESTS, _PROGRESS = "dumps/requests", "dumps/progress"
_KEPT = timedelta(days=30)


def queue_dump(
    store: ProgressStore, tables: Sequence[str], keys: Sequence[Key] | None = None, *, priority: int = 0,
    removes: bool = False, max_removed: float | None = None,
) -> str:
    """Queue a dump of ``tables`` in this order, or only of the rows with ``keys``; return its id, which sorts by time.

    With ``removes`` those of the ``keys`` that no longer exist are deleted. If a dump of a whole table did not return
    more than the share ``max_removed`` of its rows, it deletes none of them; None is no limit. Deletes the progress of
    dumps that finished long ago.
    """
    return _queue(store, tables, keys, None, priority=priority, removes=removes, max_removed=max_removed)


def queue_verification(
    store: ProgressStore, tables: Sequence[str], keys: Sequence[Key] | None = None, *, sample: float = 1.0,
    verification_id: str | None = None, priority: int = 0,
) -> str:
    """Queue the reading of tables, or of rows with ``keys``, to be compared with state; return its id.

    ``sample`` is the share of each table's key ranges to read.
    """
    return _queue(store, tables, keys, verification_id, priority=priority, verify=True, sample=sample)


def queue_import(
    store: ProgressStore, import_id: str, table: str, imported: ImportSpec, earlier: frozenset[str], *,
    max_removed: float | None = None,
) -> None:
    """Queue a dump of a table whose rows are read from files. ``max_removed`` is as for ``queue_dump``.

    ``earlier`` are the ``dumps_of`` from before the import was checked: every other one is newer than its files.
    """
    _queue(
        store, [table], None, import_id, imported=imported, earlier_dumps=tuple(sorted(earlier)),
        max_removed=max_removed,
    )


def dumps_of(store: ProgressStore, table: str) -> frozenset[str]:
    """Return the ids of all dumps of a table that the store has."""
    return frozenset(dump_id for _, dump_id in _documents_of(store, table))


def new_id() -> str:
    """Return the id of a dump that is queued now."""
    return f"{_id_prefix(datetime.now(UTC))}-{secrets.token_hex(2)}"


def first_batch_of_imports(store: ProgressStore) -> int | None:
    """Return the oldest landing batch that an unfinished import needs, paused ones included; None without one."""
    imports = (request.imported for request in read_requests(store) if request.control is not DumpControl.CANCEL)
    return min((imported.first_batch for imported in imports if imported), default=None)


def find_other_dump(store: ProgressStore, task: DumpTask) -> str | None:
    """Return the id of a dump of the task's table that is not finished, or was queued after the task; None without one.

    Verifications read no data, so they are none.
    """
    for path, dump_id in _documents_of(store, task.table):
        is_other = dump_id != task.id and (path.startswith(_REQUESTS) or task.request.is_older_than(dump_id))
        document = store.read(path) if is_other else None
        if document and not document.get("verify"):
            return dump_id
    return None


def has_whole_dump(store: ProgressStore, table: str, since: Position) -> bool:
    """Return True if a dump of the whole table is done, all of whose chunks were read after a position of the log."""
    documents = ((path, store.read(path)) for path, _ in _documents_of(store, table) if path.startswith(_PROGRESS))
    dumps = (DumpProgress.from_document(path, document) for path, document in documents if document)
    return any(
        dump.state is DumpState.DONE and dump.whole and not dump.verify
        and dump.began is not None and dump.began.position >= since for dump in dumps
    )


def _documents_of(store: ProgressStore, table: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of a table's requests and progress, with their dumps' ids."""
    name = folder(table)
    for path in (*store.list(_REQUESTS), *store.list(_PROGRESS)):
        dump_id, _, of_table = path.rpartition("/")[2].partition(".")
        if of_table == name:
            yield path, dump_id


def _queue(
    store: ProgressStore, tables: Sequence[str], keys: Sequence[Key] | None, given_id: str | None, **options: Any
) -> str:
    now = datetime.now(UTC)
    _delete_finished(store, before=_id_prefix(now - _KEPT))
    dump_id = given_id or new_id()
    # Progress is the last key read, so no key may occur twice.
    unique = None if keys is None else tuple(dict.fromkeys(keys))
    for number, table in enumerate(tables, start=1):
        _write_request(store, DumpRequest(dump_id, table, number, time_text(now), unique, **options))
    return dump_id


def read_requests(store: ProgressStore) -> list[DumpRequest]:
    """Return all requests of unfinished dumps, paused and cancelled ones included, in the order of reading."""
    requests = (
        DumpRequest.from_document(path, document)
        for path in store.list(_REQUESTS) if (document := store.read(path))
    )
    return sorted(requests, key=lambda r: (-r.priority, r.requested_at, r.id, r.number))


def request_ids(store: ProgressStore) -> Sequence[str]:
    """Return the names of the request documents, without reading them: a cheap way to detect a change of the queue."""
    return store.list(_REQUESTS)


def set_control(store: ProgressStore, request: DumpRequest, control: DumpControl) -> None:
    """Run, pause or cancel a table's dump; capture applies it before the table's next chunk."""
    _write_request(store, replace(request, control=control))


def dismiss_failed(store: ProgressStore, dump_id: str | None, table: str | None) -> set[tuple[str, str]]:
    """Mark failed dumps as cancelled, which ``status`` does not report; return their ids and tables.

    Only those with an id, or of a table; None is any.
    """
    dismissed = set()
    for path in store.list(_PROGRESS):
        if document := store.read(path):
            progress = DumpProgress.from_document(path, document)
            is_meant = dump_id in (None, progress.id) and table in (None, progress.table)
            if is_meant and progress.state is DumpState.FAILED:
                store.write(path, replace(progress, state=DumpState.CANCELLED).to_document())
                dismissed.add((progress.id, progress.table))
    return dismissed


def read_control(store: ProgressStore, task: DumpTask) -> DumpControl:
    """Return the current control of a task; a task whose request is gone is cancelled."""
    path = _path(_REQUESTS, task.id, task.table)
    document = store.read(path)
    return DumpRequest.from_document(path, document).control if document else DumpControl.CANCEL


def paused_imports(store: ProgressStore) -> list[DumpTask]:
    """Return the unfinished imports that are paused."""
    paused = [request for request in read_requests(store) if request.control is DumpControl.PAUSE]
    tasks = [DumpTask(request, _progress_of(store, request)) for request in paused if request.imported]
    return [task for task in tasks if not task.progress.state.is_final]


def pending_tasks(store: ProgressStore) -> list[DumpTask]:
    """Return the tasks to read now, in order: neither paused nor finished. Marks cancelled ones as cancelled."""
    tasks = []
    for request in read_requests(store):
        task = DumpTask(request, _progress_of(store, request))
        if task.progress.state.is_final:
            store.delete(_path(_REQUESTS, request.id, request.table))
        elif request.control is DumpControl.CANCEL:
            save_progress(store, task.cancel())
        elif request.control is DumpControl.RUN:
            tasks.append(task)
    return tasks


def save_progress(store: ProgressStore, task: DumpTask) -> DumpTask:
    """Write a task's progress and return the task. A finished task loses its request: it is no longer pending."""
    store.write(_path(_PROGRESS, task.id, task.table), task.progress.to_document())
    if task.progress.state.is_final:
        store.delete(_path(_REQUESTS, task.id, task.table))
    return task


def dump_status(store: ProgressStore, *, verifications: bool = False) -> list[dict[str, Any]]:
    """Return every stored dump, one entry per table, oldest first. Scripts rely on the entries' keys.

    With ``verifications`` return the progress of verifications instead.
    """
    entries = {}
    for path in store.list(_PROGRESS):
        if document := store.read(path):
            progress = DumpProgress.from_document(path, document)
            entries[progress.id, progress.table] = (progress.id, 0, progress.table), progress
    for request in read_requests(store):
        progress = _progress_of(store, request)
        if not progress.state.is_final:
            state = _controlled_state(progress.state, request.control)
            progress = replace(progress, state=state, whole=request.keys is None and not request.verify)
        entries[request.id, request.table] = (request.id, request.number, request.table), progress
    return [
        {
            "id": p.id, "table": p.table, "state": p.state.value, "chunks": p.chunks, "rows": p.rows,
            "started_at": p.started_at, "finished_at": p.finished_at, "error": p.error,
            "whole": p.whole,
        }
        for _, p in sorted(entries.values(), key=lambda entry: entry[0]) if p.verify is verifications
    ]


def _controlled_state(state: DumpState, control: DumpControl) -> DumpState:
    """Return the state to show: a control counts at once, although capture may not have applied it yet."""
    if control is DumpControl.CANCEL:
        return DumpState.CANCELLED
    if control is DumpControl.PAUSE:
        return DumpState.PAUSED
    return DumpState.QUEUED if state is DumpState.PAUSED else state


def _id_prefix(moment: datetime) -> str:
    """Return how the id of a dump queued at a time begins."""
    return f"{moment:%Y%m%d-%H%M%S}-{moment.microsecond // 1000:03d}"


def _delete_finished(store: ProgressStore, *, before: str) -> None:
    """Delete the progress of finished dumps whose id sorts before ``before``."""
    oldest = f"{_PROGRESS}/{before}"
    for path in store.list(_PROGRESS):
        document = store.read(path) if path < oldest else None
        if document and DumpProgress.from_document(path, document).state.is_final:
            store.delete(path)


def _write_request(store: ProgressStore, request: DumpRequest) -> None:
    store.write(_path(_REQUESTS, request.id, request.table), request.to_document())


def _progress_of(store: ProgressStore, request: DumpRequest) -> DumpProgress:
    path = _path(_PROGRESS, request.id, request.table)
    document = store.read(path)
    if document:
        return DumpProgress.from_document(path, document)
    return DumpProgress(request.id, request.table, verify=request.verify)


def _path(kind: str, dump_id: str, table: str) -> str:
    return f"{kind}/{dump_id}.{folder(table)}"
