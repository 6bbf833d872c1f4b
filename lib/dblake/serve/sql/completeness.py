"""Warn of queries over tables that lack rows or values.

Tables that are suspended, incomplete or not dumped yet lack rows. Values are missing where a type cannot hold the
source's value. Place: around an engine of the command line. Each table is named once a session. A name is searched in
the statement's text, so a column of the same name may cause a needless note. No use of a table by its name goes
without a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dblake.base.core.names import split_qualified
from dblake.serve.sql.names import sql_name
from dblake.serve.sql.result import Engine, QueryResult


class WarningEngine:
    """An engine whose warnings name incomplete tables; ``missing`` returns why rows of each are missing, by table.

    ``tables`` returns all tables, ``count_lossy`` in how many rows of one each column's value is NULL for its type.
    """

    def __init__(
        self, engine: Engine, missing: Callable[[], Mapping[str, str]], tables: Callable[[], Iterable[str]],
        count_lossy: Callable[[str], Mapping[str, int]],
    ) -> None:
        self._engine, self._missing, self._tables, self._count_lossy = engine, missing, tables, count_lossy
        self._known: Mapping[str, str] | None = None
        self._named: set[str] = set()
        self._counted: set[str] = set()
        self._statement = ""

    def query(self, statement: str) -> QueryResult:
        """Return the statement's result."""
        self._statement = statement
        return self._engine.query(statement)

    def warnings(self) -> Sequence[str]:
        """Return the engine's warnings, and the tables in the newest statement that lack rows."""
        if self._known is None:
            self._known = self._missing()
        found = [table for table in self._known if table not in self._named and _uses(self._statement, table)]
        self._named.update(found)
        return [*self._engine.warnings(), *(f"table {table} lacks rows: {self._known[table]}" for table in found),
                *self._describe_lossy()]

    def _describe_lossy(self) -> Iterator[str]:
        for table in self._tables():
            if table in self._counted or not _uses(self._statement, table):
                continue
            self._counted.add(table)
            lossy = self._count_lossy(table)
            if lossy:
                columns = ", ".join(f"{name} in {count:,} row{'' if count == 1 else 's'}"
                                    for name, count in lossy.items())
                yield f"table {table} shows NULL for values that their types cannot hold: {columns}; " \
                      "dblake.events has them as text"

    def interrupt(self) -> None:
        """Interrupt the running query."""
        self._engine.interrupt()

    def progress(self) -> float | None:
        """Return the share of the running query that is done."""
        return self._engine.progress()

    def words(self) -> Iterable[str]:
        """Return the names of tables and columns."""
        return self._engine.words()

    def describe_tables(self) -> str:
        """Return in one line which tables there are."""
        return self._engine.describe_tables()


def _uses(statement: str, table: str) -> bool:
    names = {split_qualified(table)[1], sql_name(table).rpartition(".")[2]}
    return any(re.search(rf"(?<!\w){re.escape(name)}(_live|_history)?(?!\w)", statement, re.IGNORECASE)
               for name in names)
