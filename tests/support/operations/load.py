"""Writers that change random rows of random tables, whatever columns and keys these have at the moment.

A statement that the database refuses is not an error: an operator works on the same tables. What the source then holds
is the expectation, so writers record nothing. ``paused`` ends when every writer's transaction has ended.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any

from tests.support.operations.databases import MARKER, SCHEMA, Field, OperatedDatabase

_KEYS = 150
_CATALOG_LIFE = 15
"""For how many transactions a writer uses the tables' columns that it has read."""
_ROLLBACK_SHARE = 0.05


class RandomWriters:
    """Writers on their own connections, for the duration of the block."""

    def __init__(self, database: OperatedDatabase, seed: int, *, count: int = 2, pause: float = 0.005) -> None:
        self._database, self._pause, self._stop = database, pause, threading.Event()
        self._turns = [threading.Lock() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._write, args=(turn, random.Random(seed * 100 + number)))
            for number, turn in enumerate(self._turns)
        ]
        self.transactions = 0
        self._sessions = 0

    def __enter__(self) -> RandomWriters:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no writer write within the block."""
        with ExitStack() as held:
            for turn in self._turns:
                held.enter_context(turn)
            yield

    def reconnect(self) -> None:
        """Let every writer open another session."""
        self._sessions += 1

    def _write(self, turn: threading.Lock, dice: random.Random) -> None:
        connection, session, life, tables = None, 0, 0, dict[str, list[Field]]()
        while not self._stop.wait(self._pause):
            with turn:
                try:
                    if session != self._sessions:
                        _close(connection)
                        connection, session = None, self._sessions
                    connection = connection or self._database.connect()
                    life -= 1
                    if life < 0:
                        tables = self._read_tables()
                        life = _CATALOG_LIFE
                    if tables:
                        self._transact(connection, tables, dice)
                except Exception:  # noqa: BLE001 - the database refuses it, or is down
                    _close(connection)
                    connection, life = None, 0
            # A lock is not fair: without a pause another thread would wait for it for long.
            self._stop.wait(self._pause)
        _close(connection)

    def _read_tables(self) -> dict[str, list[Field]]:
        return {table: self._database.columns(table) for table in self._database.tables() if table != MARKER}

    def _transact(self, connection: Any, tables: dict[str, list[Field]], dice: random.Random) -> None:
        with connection.cursor() as cursor:
            for _ in range(dice.randint(1, 4)):
                table = dice.choice(list(tables))
                cursor.execute(*random_statement(table, tables[table], dice, self._database.ignore_duplicates))
        if dice.random() < _ROLLBACK_SHARE:
            connection.rollback()
        else:
            connection.commit()
            self.transactions += 1


def random_statement(
    table: str, fields: Sequence[Field], dice: random.Random, ignore_duplicates: tuple[str, str]
) -> tuple[str, list[object]]:
    """Return an INSERT, UPDATE or DELETE of about one row, with its parameters."""
    name, others = f'{SCHEMA}."{table}"', [field for field in fields if field.name != "id"]
    key, choice = dice.randint(1, _KEYS), dice.random()
    if choice < 0.45 or not others:
        values = {"id": key, **{field.name: random_value(field, dice) for field in others}}
        before, after = ignore_duplicates
        names, places = ", ".join(f'"{column}"' for column in values), ", ".join(["%s"] * len(values))
        return f"INSERT {before} INTO {name} ({names}) VALUES ({places}) {after}", list(values.values())
    if choice < 0.80:
        field = dice.choice(others)
        return f'UPDATE {name} SET "{field.name}" = %s WHERE id = %s', [random_value(field, dice), key]
    if choice < 0.85:
        return f"UPDATE {name} SET id = %s WHERE id = %s", [dice.randint(1, _KEYS), key]
    return f"DELETE FROM {name} WHERE id = %s", [key]


def random_value(field: Field, dice: random.Random) -> object:
    """Return a value for a column; one of ten is NULL, and so are all of other types."""
    kind = field.type
    if dice.random() < 0.1:
        return None
    if "int" in kind:
        return dice.randint(-99, 99)
    if kind in ("numeric", "decimal"):
        return f"{dice.randint(-9999, 9999) / 100:.2f}"
    if kind == "date":
        return f"2026-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"
    if kind.startswith(("timestamp", "datetime")):
        return f"2026-01-{dice.randint(1, 28):02} {dice.randint(0, 23):02}:30:00.{dice.randint(0, 999999):06}"
    if "char" in kind or kind == "text":
        return "".join(dice.choices("abcäß ", k=dice.randint(0, 8)))
    return None


def _close(connection: Any) -> None:
    if connection is not None:
        with suppress(Exception):
            connection.close()
