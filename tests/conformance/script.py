"""A small script language for what applications do to a table ``(id, v)``, and for the resulting events.

``T1 update 1 x`` runs in a transaction called T1, which ``T1 commit`` ends; without a name each line is its own
transaction. An event line such as ``u 1 x`` has the operation, the key, and the value of ``v`` if it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.model.dblog import Event
from tests.support.backends import WATERMARKS, Backend, Row, Transaction


class Script:
    """Runs lines on one table of a backend."""

    def __init__(self, backend: Backend, table: str) -> None:
        self._backend, self._table = backend, table
        self._open: dict[str, Transaction] = {}

    def run(self, lines: Iterable[str]) -> None:
        for line in lines:
            first, *words = line.split(" ")
            if not first.startswith("T"):
                with self._backend.begin() as transaction:
                    self._do(transaction, first, words)
            elif words == ["commit"]:
                self._open.pop(first).commit()
            elif words == ["rollback"]:
                self._open.pop(first).rollback()
            else:
                if first not in self._open:
                    self._open[first] = self._backend.begin()
                self._do(self._open[first], words[0], words[1:])

    def _do(self, transaction: Transaction, verb: str, words: list[str]) -> None:
        match verb, words:
            case "insert", [key, value]:
                transaction.insert(self._table, {"id": key, "v": value})
            case "update", [key, value]:
                transaction.update(self._table, {"id": key}, {"v": value})
            case "rekey", [key, other]:
                transaction.update(self._table, {"id": key}, {"id": other})
            case "delete", [key]:
                transaction.delete(self._table, {"id": key})
            case "truncate", []:
                transaction.truncate(self._table)
            case "mark", [reader, "NULL"]:
                transaction.update(WATERMARKS, {"id": reader}, {"value": None})
            case "mark", [reader, value]:
                transaction.update(WATERMARKS, {"id": reader}, {"value": value})
            case "replay", [reader]:
                (row,) = [row for row in self._backend.rows(WATERMARKS) if row["id"] == reader]
                transaction.update(WATERMARKS, {"id": reader}, {"value": row["value"]})
            case _:
                raise AssertionError(f"no such line: {verb} {words}")


def event_lines(events: Iterable[Event], table: str) -> list[str]:
    """Return the events of a table, one line each."""
    return [_line(event) for event in events if event.table == table]


def _line(event: Event) -> str:
    image: Row = dict(event.after or {})
    parts = [event.op, *(event.key or ()), *([str(image["v"])] if "v" in image else [])]
    return " ".join(parts + (["big"] if "big" in image else []))
