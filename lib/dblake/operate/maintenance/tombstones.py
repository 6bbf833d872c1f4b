"""Tombstones of a state table that may be deleted.

Place: between state and ``maintenance.run``. A tombstone keeps an older event from restoring its row, so it must
outlive every replay: it may be deleted once state as a whole has been past it for as long as tombstones are retained.
The caller decides up to which position that holds.
"""

from __future__ import annotations

from dblake.base.core.position import Position
from dblake.transform.spark.sql_literals import position, state_at


def expired_tombstones_sql(upto: Position) -> str:
    """Return an SQL condition for the tombstones of a state table ``t`` up to a position."""
    return f"t._deleted AND {state_at('t')} <= {position(upto)}"
