"""Tables found to have changed without row events, as documents: kept until the dump that mends them is done.

Capture writes them (``redump``), the ``dump`` command says that it was heard, ``status`` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from dblake.capture.progress import ProgressStore
from dblake.capture.requests import State, status
from dblake.core.errors import ConfigError
from dblake.core.names import folder

_REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class StaleTable:
    """A table whose rows may be wrong here until a dump, once one is asked for, is done; and why."""

    table: str
    why: str
    dump_id: str | None = None


def rewritten(store: ProgressStore) -> list[StaleTable]:
    """The tables found and not mended yet."""
    found = []
    for path in store.list(_REWRITTEN):
        if document := store.read(path):
            try:
                found.append(StaleTable(**document))
            except TypeError as error:
                raise ConfigError(
                    f"progress: the document {path} is not one this version understands",
                    next_step="delete the document and dump its table again",
                ) from error
    return found


def keep(store: ProgressStore, found: StaleTable) -> None:
    """Notes a table; what was noted of it before is forgotten."""
    store.write(f"{_REWRITTEN}/{folder(found.table)}", asdict(found))


def answered(store: ProgressStore, tables: Sequence[str], dump_id: str) -> None:
    """Tells that somebody has asked for a dump of these whole tables."""
    for found in rewritten(store):
        if found.table in tables:
            keep(store, replace(found, dump_id=dump_id))


def settle(store: ProgressStore) -> None:
    """Forgets what a dump has mended."""
    if found := rewritten(store):
        done = {(dump["id"], dump["table"]) for dump in status(store) if dump["state"] == State.DONE}
        for each in found:
            if (each.dump_id, each.table) in done:
                forget(store, each.table)


def forget(store: ProgressStore, table: str) -> None:
    """Notes that the table is right again."""
    store.delete(f"{_REWRITTEN}/{folder(table)}")
