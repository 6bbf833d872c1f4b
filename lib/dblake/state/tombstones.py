"""Deleted keys of a state table that nothing can bring up again.

A tombstone is what keeps an older event from bringing its row back, so it outlives every replay: it may go once state
as a whole has stood beyond it for the time tombstones are kept. When that was is the caller's to find out.
"""

from __future__ import annotations

from dblake.core.position import Position
from dblake.state.spelling import position


def expired(at: Position) -> str:
    """SQL for the tombstones of a state table up to a position."""
    return f"_deleted AND named_struct('incarnation', _incarnation, 'lsn', _lsn, 'seq', _seq) <= {position(at)}"
