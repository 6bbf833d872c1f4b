"""Inputs that users of other capture products reported, as a table: statements, and the rows that must come of them.

Each input is written from the facts of a public thread, which ``source`` names: repository and number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dblake.base.core.source import Source
from dblake.ingest.capture.dump_task import Key
from dblake.ingest.capture.table_life import TableLife, read_lives
from tests.model.dblog import fold
from tests.support.backends import Row
from tests.support.lake import CaptureLake

Values = tuple[str | None, ...]
_CHUNK_ROWS = 2


@dataclass(frozen=True)
class Reported:
    """One input: a table ``public.NAME`` that is dumped in chunks of two rows while its application works.

    ``window`` runs between the first chunk's read and its high watermark, ``later`` once the dump is done. The table
    then has ``rows``: canonical texts of ``columns``. An input with ``rejection`` is not dumped, but suspended for that
    reason.
    """

    name: str
    source: str
    setup: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Values, ...]
    window: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    rejection: str = ""

    @property
    def table(self) -> str:
        return f"public.{self.name}"


@dataclass(frozen=True)
class Captured:
    """What one run of capture made of a list of inputs: the rows of state by table and key, and the tables' lives."""

    state: Mapping[tuple[str, Key], Row]
    lives: Mapping[str, TableLife]

    def rows(self, given: Reported) -> list[Values]:
        """Return the table's rows in state; a column that a row does not have is NULL there."""
        found = [row for (table, _), row in self.state.items() if table == given.table]
        return ordered([tuple(row.get(name) for name in given.columns) for row in found])


def capture_all(
    lake: CaptureLake, inputs: Sequence[Reported], run: Callable[..., None], open_source: Callable[[], Source]
) -> Captured:
    """Create all tables, dump and capture them, run what follows, and capture that."""
    for given in inputs:
        run(*given.setup)
    source = open_source()
    lake.dump(*(given.table for given in inputs if not given.rejection))
    steps = {("read", given.table): partial(run, *given.window) for given in inputs if given.window}
    lake.capture(source, chunk_size=_CHUNK_ROWS, steps=steps)
    for given in inputs:
        run(*given.later)
    lake.capture(source)
    return Captured(fold(lake.reconciled()[0]), read_lives(lake.store))


def ordered(rows: Iterable[Values]) -> list[Values]:
    """Return rows in an order that does not depend on the database's collations."""
    return sorted(rows, key=lambda row: [(value is not None, value or "") for value in row])
