"""Record who changed which row, when, and together with which other rows, in a log that SQL can query.

``ActivityLog`` is an output that appends each transaction of the source to a SQLite file. Who acted and why is what the
application writes into a table of its own, in the same transaction: because transactions are delivered whole, that row
explains all others, deletes included, and the application's tables need no columns for it::

    BEGIN; INSERT INTO acts (actor, reason) VALUES ('ann', 'ticket 815'); DELETE FROM orders WHERE id = 7; COMMIT;

Configuration::

    outputs:
      activity:
        class: examples.activity_log:ActivityLog
        tables: ["public.*"]
        start: 1/0
        settings: {path: /var/lib/shop/activity.db, acts: public.acts}

``start: 1/0`` records everything that ``events`` hold, ``now`` what comes. Rows of a dump or of a bootstrap are not
activity. SQLite commits the checkpoint with the entries, so each transaction is in the log exactly once.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dblake.outputs import Control, ControlKind, Event, OutputContext, Transaction, json_image

_LOG = """
CREATE TABLE IF NOT EXISTS activity (
    number INTEGER PRIMARY KEY, source TEXT, position TEXT, txid TEXT, committed_at TEXT, actor TEXT, reason TEXT
);
CREATE TABLE IF NOT EXISTS change (
    activity INTEGER REFERENCES activity, position TEXT, "table" TEXT, op TEXT, "key" TEXT, before TEXT, after TEXT
);
CREATE INDEX IF NOT EXISTS change_of_row ON change ("table", "key");
CREATE INDEX IF NOT EXISTS change_of_activity ON change (activity);
CREATE TABLE IF NOT EXISTS hole (source TEXT, position TEXT, kind TEXT, reason TEXT);
CREATE TABLE IF NOT EXISTS checkpoint (text TEXT);
"""
_HISTORY = """
SELECT a.number, a.committed_at, a.actor, a.reason, c.op, c.before, c.after
FROM change c JOIN activity a ON a.number = c.activity WHERE c."table" = ? AND c."key" = ? ORDER BY a.number, c.rowid
"""
_TOGETHER = 'SELECT "table", op, "key", before, after FROM change WHERE activity = ? ORDER BY rowid'
_IMAGES = ("key", "before", "after")


class ActivityLog:
    """See ``dblake.outputs.Output``. The log is the file ``path``; ``acts`` is the table that names actors."""

    holds_checkpoint = True

    def __init__(self, context: OutputContext, *, path: str, acts: str) -> None:  # noqa: ARG002 - every output has it
        self._path, self._acts = Path(path), acts
        self._log: sqlite3.Connection | None = None

    def open(self) -> str | None:
        """Open the log, or create it; return its checkpoint."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._log = sqlite3.connect(self._path)
        self._log.executescript(_LOG)
        row = self._log.execute("SELECT text FROM checkpoint").fetchone()
        return row and str(row[0])

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        """Append transactions and the checkpoint, all or nothing."""
        assert self._log is not None, "delivery opens the output"
        with self._log:
            for transaction in transactions:
                if transaction.control is not None:
                    self._append_hole(self._log, transaction.control)
                self._append(self._log, transaction)
            self._log.execute("DELETE FROM checkpoint")
            self._log.execute("INSERT INTO checkpoint VALUES (?)", (checkpoint,))

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()

    def _append(self, log: sqlite3.Connection, transaction: Transaction) -> None:
        events = [event for event in transaction.events if event.origin == "log"]
        if not events:
            return
        # An act is written once and never updated.
        act = next((event.after or {} for event in events if event.table == self._acts and event.op == "c"), {})
        number = log.execute(
            "INSERT INTO activity (source, position, txid, committed_at, actor, reason) VALUES (?, ?, ?, ?, ?, ?)",
            (transaction.source, str(transaction.position), events[0].txid,
             transaction.committed_at and transaction.committed_at.isoformat(), act.get("actor"), act.get("reason")),
        ).lastrowid
        log.executemany(
            "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((number, str(event.position), event.table, event.op, *_images(event)) for event in events
             if event.table != self._acts),
        )

    @staticmethod
    def _append_hole(log: sqlite3.Connection, control: Control) -> None:
        """Record that the log may lack transactions, or that events before it were decoded again."""
        if control.kind in (ControlKind.GAP, ControlKind.REDECODED):
            reason = control.details.get("reason")
            log.execute("INSERT INTO hole VALUES (?, ?, ?, ?)",
                        (control.source, str(control.position), str(control.kind), reason))


def read_history(path: str | Path, table: str, key: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all changes of one row in order: its transaction's number, when, who, why, and the values."""
    return _query(path, _HISTORY, table, _dump(key))


def read_activity(path: str | Path, number: int) -> list[dict[str, Any]]:
    """Return all changes of one transaction in order: what was changed together."""
    return _query(path, _TOGETHER, number)


def _query(path: str | Path, statement: str, *values: Any) -> list[dict[str, Any]]:
    log = sqlite3.connect(path)
    log.row_factory = sqlite3.Row
    try:
        rows = [dict(row) for row in log.execute(statement, values)]
    finally:
        log.close()
    return [
        {name: json.loads(value) if value and name in _IMAGES else value for name, value in row.items()} for row in rows
    ]


def _images(event: Event) -> list[str | None]:
    """Return key, before and after as JSON; of an update only the columns that changed, where the source logs both."""
    before, after = event.before, event.after
    if event.op == "u" and before and after:
        changed = [name for name in after if name not in before or before[name] != after[name]]
        before = {name: before[name] for name in changed if name in before}
        after = {name: after[name] for name in changed}
    images = (event.key, before, after)
    return [None if image is None else _dump(json_image(image, event.schema)) for image in images]


def _dump(image: Any) -> str:
    return json.dumps(image, ensure_ascii=False, separators=(",", ":"))
