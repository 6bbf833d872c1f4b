"""The life of each captured table, as documents: what state holds of it, since when, and why.

Capture writes them (``lifecycle``), ``status`` and others read them. Guarantee: a table that is not followed, or of
which rows are missing, has a document that records it before the position behind that has landed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from dblake.base.core.names import folder
from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.progress import ProgressStore

_LIVES = "lives"
KEYLESS = "no primary key: rows from before it was followed are missing"
"""Why a table is incomplete that no dump can complete."""

_INIT_CHECKS = ("publication_tables", "schema_privileges", "table_privileges")
"""The checks that ``preflight --init`` makes pass: what a new table lacks."""


class LifeState(StrEnum):
    """The state of a captured table."""

    PENDING = "pending"
    """Followed from the log; its first dump, or the one after a return, is not done."""
    FOLLOWED = "followed"
    """Followed from the log, and complete."""
    INCOMPLETE = "incomplete"
    """Followed from the log, and rows from before are missing, because no dump of it is possible or wanted."""
    SUSPENDED = "suspended"
    """It does not meet its prerequisites: nothing of it lands, or none of it can be dumped."""
    REMOVED = "removed"
    """No longer captured: dropped, renamed, or taken out of ``source.tables``."""


@dataclass(frozen=True, slots=True)
class TableLife:
    """One table's state since ``position``, where landing was at ``since`` (UTC, ISO 8601), and why.

    ``is_complete`` is true if its rows were complete when the state began; ``has_log`` if its changes have landed since
    then, so that a suspended table needs no dump to return.
    """

    table: str
    state: LifeState
    since: str
    position: str
    reason: str = ""
    is_complete: bool = False
    has_log: bool = True


def suspension_next_step(reason: str) -> str:
    """Return what corrects a table that is suspended for this reason."""
    if reason.startswith(_INIT_CHECKS):
        return "run preflight --init, which publishes the table and grants what is missing"
    return "run preflight, which prints the statement that corrects it"


def read_lives(store: ProgressStore) -> dict[str, TableLife]:
    """Return the lives of all tables by name. Raises ConfigError for a document that another version wrote."""
    lives = {}
    for path in store.list(_LIVES):
        if document := store.read(path):
            with document_errors(path, "delete the document; capture then dumps its table again"):
                life = TableLife(**document | {"state": LifeState(document["state"])})
                lives[life.table] = life
    return lives


def save_life(store: ProgressStore, life: TableLife) -> None:
    """Write a table's life, replacing the earlier document."""
    store.write(f"{_LIVES}/{folder(life.table)}", asdict(life))


def missing_rows(lives: Mapping[str, TableLife]) -> dict[str, str]:
    """Return why rows of a table are missing or outdated, for each table that is not complete and followed."""
    return {
        table: f"{life.state.value}: {life.reason}" if life.reason else life.state.value
        for table, life in sorted(lives.items()) if life.state is not LifeState.FOLLOWED
    }
