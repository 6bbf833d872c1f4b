"""Forget the positions of deleted keys once no event that could bring them back can be delivered again.

Place: beside ``tables``, called between writes. Guarantee: a position goes only if the lake has removed events up to a
later one, because no delivery begins before those: neither at a point, nor with a bootstrap. ``_dblake_expired`` has
the position up to which this is done, so that a run without news reads no table.
"""

from __future__ import annotations

from collections.abc import Iterable

from dblake.base.core.position import Position
from dblake.serve.outputs.sql.tables import ManagedTable
from dblake.serve.outputs.sql.target import EXPIRED, Target, literal


class ExpiredPositions:
    """The positions of one output, by source."""

    def __init__(self, target: Target, output: str) -> None:
        self._target, self._output = target, output
        self._done: dict[str, Position] = {}

    def open(self) -> None:
        """Create the table if it is missing, and read it."""
        self._target.execute(
            f"CREATE TABLE IF NOT EXISTS {self._target.quote(EXPIRED)} (output varchar(64) NOT NULL, "
            "source varchar(64) NOT NULL, incarnation bigint NOT NULL, lsn bigint NOT NULL, seq bigint NOT NULL, "
            "PRIMARY KEY (output, source))"
        )
        rows = self._target.query(
            f"SELECT source, {', '.join(Position.COLUMNS)} FROM {self._target.quote(EXPIRED)} WHERE output = %s",
            (self._output,),
        )
        self._done = {source: Position(*position) for source, *position in rows}

    def is_news(self, source: str, upto: Position) -> bool:
        """Return whether a position is later than the one up to which all is forgotten."""
        return source not in self._done or self._done[source] < upto

    def forget(self, tables: Iterable[ManagedTable], source: str, upto: Position) -> None:
        """Forget deleted keys of a source's tables up to a position, in the caller's transaction."""
        for managed in tables:
            self._target.execute(
                f"DELETE FROM {managed.target.guard} WHERE deleted"
                f" AND ({', '.join(Position.COLUMNS)}) <= {literal(upto)}"
            )
        expired = self._target.quote(EXPIRED)
        self._target.execute(f"DELETE FROM {expired} WHERE output = %s AND source = %s", (self._output, source))
        self._target.execute(
            f"INSERT INTO {expired} (output, source, {', '.join(Position.COLUMNS)}) VALUES (%s, %s, %s, %s, %s)",
            (self._output, source, upto.incarnation, upto.lsn, upto.seq),
        )
        self._done[source] = upto
