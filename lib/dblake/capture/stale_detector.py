"""Tables whose rows changed without row events: found out, and dumped again.

A default for a new column, a type converted, an enum's label renamed, a partition dropped, another table renamed to
take its place: the log has no row for any of it. Capture hands over what the log says of tables' shapes before it lands
it, and this module holds the catalogue against what the catalogue said before. That is kept in the progress store,
table by table, so that a change made while no capture ran is found as well. Promises one dump for one change: one that
is asked for and has not begun will do.

What cannot be told from the catalogue the log's statements tell, where it has them (``rewrites`` and ``gone`` in their
payload). The dumps themselves are ``dumps``' business; what was found and is not mended yet is in ``rewritten``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dblake.capture.documents import Document
from dblake.capture.progress import ProgressStore
from dblake.capture.requests import State, pending, queue_dump
from dblake.capture.stale_tables import StaleTable, forget, keep, rewritten, settle
from dblake.core.errors import ConfigError
from dblake.core.names import folder
from dblake.core.source import ColumnFingerprint, Source, TableFingerprint
from dblake.landing.columns import DDL, SCHEMA, TRUNCATE

_KNOWN = "tables"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """What the catalogue said of a table; ``TableFingerprint`` as a document."""

    table: str
    schema_id: str
    columns: Mapping[str, ColumnFingerprint]
    bodies: tuple[str, ...]
    file: str

    @classmethod
    def of(cls, now: TableFingerprint) -> Known:
        return cls(now.schema.table, now.schema.schema_id, dict(now.columns), tuple(sorted(now.bodies)), now.file)

    @classmethod
    def read(cls, path: str, document: Document) -> Known:
        try:
            columns = {name: ColumnFingerprint(**column) for name, column in document["columns"].items()}
            return cls(**document | {"columns": columns, "bodies": tuple(document["bodies"])})
        except (KeyError, TypeError) as error:
            raise _not_understood(path) from error


class StaleTableDetector:
    """The watch over one source's tables. With ``auto`` it asks for dumps, without it only says what to ask for."""

    def __init__(self, source: Source, store: ProgressStore, *, auto: bool) -> None:
        self._source, self._store, self._auto = source, store, auto
        found = ((path, store.read(path)) for path in store.list(_KNOWN))
        self._known = {k.table: k for k in (Known.read(path, doc) for path, doc in found if doc)}

    def begin(self) -> bool:
        """To be called before the log is read on. What the log itself will tell of is left for then."""
        if not self._source.schema_changes_in_log:
            return self.look()
        there = self._source.table_fingerprints()
        asked = self._judge([now for now in there if now.schema.table not in self._known])
        return self._judge([now for now in there if now.schema.table in self._waiting()]) or asked

    def log_says(self, rows: pa.Table) -> bool:
        """Takes in a piece of log; to be called before it lands. True if a dump was asked for."""
        told = rows.select(["kind", "table", "schema_id", "payload"]).filter(
            pc.is_in(rows["kind"], pa.array([SCHEMA, DDL, TRUNCATE]))
        ).to_pylist()
        for row in told:
            does = json.loads(row["payload"]) if row["kind"] == DDL else {}
            if row["kind"] == TRUNCATE or does.get("gone"):
                forget(self._store, row["table"])
            elif does.get("rewrites"):
                self._note(row["table"], "a statement moved its rows", None)
        news = any(row["kind"] == DDL or (row["kind"] == SCHEMA and not self._knows(row)) for row in told)
        return news and self.look()

    def look(self) -> bool:
        """Holds the catalogue against what it said before. True if a dump was asked for."""
        return self._judge(self._source.table_fingerprints())

    def _judge(self, table_fingerprints: Sequence[TableFingerprint]) -> bool:
        asked, waiting = False, self._waiting()
        for now in table_fingerprints:
            table = now.schema.table
            before = self._known.get(table)
            why = self._renamed(now) if before is None else changed(before, now)
            if self._auto and (table in waiting or why) and self._can_be_dumped(now):
                self._note(table, waiting.get(table) or why or "", self._asked_for(table))
                asked = True
            elif why and table not in waiting and self._can_be_dumped(now):
                self._note(table, why, None)
            self._learn(now)
        settle(self._store)
        return asked

    def _waiting(self) -> dict[str, str]:
        """Tables found of which no dump was asked for: nobody did, or they were not there or could not be read."""
        return {r.table: r.why for r in rewritten(self._store) if r.dump_id is None}

    def _learn(self, now: TableFingerprint) -> None:
        fresh = Known.of(now)
        if self._known.get(fresh.table) != fresh:
            self._store.write(f"{_KNOWN}/{folder(fresh.table)}", asdict(fresh))
            self._known[fresh.table] = fresh

    def _knows(self, row: Mapping[str, Any]) -> bool:
        known = self._known.get(row["table"])
        return known is not None and known.schema_id == row["schema_id"]

    def _renamed(self, now: TableFingerprint) -> str | None:
        """A table not known by this name whose rows are known by another."""
        filled = {body for body, rows in now.bodies.items() if rows}
        return "it was renamed" if any(filled & set(known.bodies) for known in self._known.values()) else None

    def _can_be_dumped(self, now: TableFingerprint) -> bool:
        if not now.schema.primary_key:
            logger.warning("table %s changed without row events, and without a key it is not dumped", now.schema.table)
            forget(self._store, now.schema.table)
        return bool(now.schema.primary_key)

    def _note(self, table: str, why: str, dump_id: str | None) -> None:
        keep(self._store, StaleTable(table, why, dump_id))
        if dump_id:
            logger.warning("table %s changed without row events: %s. Dump %s reads it again", table, why, dump_id)
        elif not self._auto:
            logger.warning("table %s changed without row events: %s. Next: dump start --table '%s'", table, why, table)

    def _asked_for(self, table: str) -> str:
        """The dump of the whole table that is to begin from now on."""
        for task in pending(self._store):
            if task.table == table and task.keys is None and task.progress.state is State.QUEUED:
                return task.id
        return queue_dump(self._store, [table])


def changed(before: Known, now: TableFingerprint) -> str | None:
    """Why a table's rows may be others than row events have told; None if they cannot be."""
    if gone := set(before.bodies) - set(now.bodies):
        replaced = any(body.startswith("table") for body in gone)
        return "it was made anew" if replaced else "a part of it is gone or was written anew"
    if any(rows for body, rows in now.bodies.items() if body not in before.bodies):
        return "a table was made a part of it"
    numbers = {column.number for column in before.columns.values()}
    for name, column in now.columns.items():
        was = before.columns.get(name)
        if was is None:
            stays_blank = column.blank and column.number not in numbers and now.file and now.file == before.file
            if not stays_blank:
                return f"column {name} came"
        elif (was.number, was.type) != (column.number, column.type):
            return f"column {name} is another one, or of another type"
        elif any(column.labels.get(number, label) != label for number, label in was.labels.items()):
            return f"a label of column {name} was renamed"
    if now.file != before.file and any(
        column.version != before.columns[name].version for name, column in now.columns.items() if name in before.columns
    ):
        return "its columns were written anew"
    return None


def _not_understood(path: str) -> ConfigError:
    return ConfigError(
        f"progress: the document {path} is not one this version understands",
        next_step="delete the document and dump its table again",
    )

