"""Differing rows of one table, between two points.

Place: the result of ``consolidate``, which ``lines`` and ``sql`` show.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa


class Way(StrEnum):
    """How consolidated changes are computed."""

    EVENTS = "events"
    STATES = "states"


@dataclass(frozen=True)
class Differences:
    """Differing rows of one table, in order of ``_key``.

    ``op`` (c, u or d), ``before`` and ``after`` have the same number of rows; ``before`` is all NULL where a row was
    inserted, ``after`` where one was deleted. ``before`` has the columns of the schema at the span's start, ``after``
    those at its end.
    """

    table: str
    keys: tuple[str, ...]
    op: pa.ChunkedArray
    before: pa.Table
    after: pa.Table
    way: Way
