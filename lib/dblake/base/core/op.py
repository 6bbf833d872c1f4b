"""What an event does to its row or table: the values of the column ``op`` in decoded rows and events."""

from __future__ import annotations

from enum import StrEnum


class Op(StrEnum):
    """The operation of an event. A member is its text: it compares with columns and formats into SQL as that."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    READ = "r"
    """A row that a chunk of a dump read."""
    FILL = "f"
    """Columns that a dump read for rows that lacked them."""
