"""Deleted keys of a state table that nothing can bring up again.

A tombstone is what keeps an older event from bringing its row back, so it outlives every replay: it may go once state
as a whole has stood beyond it for the time tombstones are kept. When that was is the caller's to find out.
"""

from __future__ import annotations

from dblake.core.position import Position
from dblake.spark.sql_literals import position, state_at


def expired(at: Position) -> str:
    """SQL for the tombstones of a state table ``t`` up to a position."""
    return f"t._deleted AND {state_at('t')} <= {position(at)}"
