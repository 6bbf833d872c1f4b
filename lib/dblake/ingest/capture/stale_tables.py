"""Stale tables, as documents: tables that changed without row events, each kept until its new dump is done.

Capture writes them (``stale_detector``), the ``dump`` command records the dump that covers them, ``status`` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from dblake.base.core.names import folder
from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.dump_queue import dump_status
from dblake.ingest.capture.dump_task import DumpState
from dblake.ingest.capture.progress import ProgressStore

_STALE = "rewritten"
"""The folder of the documents; they outlive versions, so it stays."""


@dataclass(frozen=True, slots=True)
class StaleTable:
    """A table whose landed rows may be outdated, why, and the queued dump that replaces them, if there is one."""

    table: str
    why: str
    dump_id: str | None = None


def read_stale_tables(store: ProgressStore) -> list[StaleTable]:
    """Return all stale tables. Raises ConfigError for a document that another version wrote."""
    tables = []
    for path in store.list(_STALE):
        if document := store.read(path):
            with document_errors(path, "delete the document and dump its table again"):
                tables.append(StaleTable(**document))
    return tables


def save_stale_table(store: ProgressStore, stale: StaleTable) -> None:
    """Write a stale table, replacing an earlier document of the same table."""
    store.write(f"{_STALE}/{folder(stale.table)}", asdict(stale))


def set_dump(store: ProgressStore, tables: Sequence[str], dump_id: str) -> None:
    """Record that a dump of these whole tables is queued; tables that are not stale are skipped."""
    for stale in read_stale_tables(store):
        if stale.table in tables:
            save_stale_table(store, replace(stale, dump_id=dump_id))


def clear_completed(store: ProgressStore) -> None:
    """Delete the stale tables whose dump is done."""
    if stale_tables := read_stale_tables(store):
        done = {(dump["id"], dump["table"]) for dump in dump_status(store) if dump["state"] == DumpState.DONE}
        for stale in stale_tables:
            if (stale.dump_id, stale.table) in done:
                delete_stale_table(store, stale.table)


def delete_stale_table(store: ProgressStore, table: str) -> None:
    """Delete a table's document: its rows are current."""
    store.delete(f"{_STALE}/{folder(table)}")


def dumps_of_stale(store: ProgressStore, table: str) -> frozenset[str]:
    """Return the ids of the dumps that a stale table waits for; the queue may have deleted a finished one."""
    return frozenset(stale.dump_id for stale in read_stale_tables(store) if stale.table == table and stale.dump_id)
