"""The layout of a binlog event that both halves read: the header, and the numbers of rows events.

Capture frames events by it, decoding reads rows by it. mysql-replication declares the same numbers in
``pymysqlreplication.constants.BINLOG``, and a unit test compares the two. They are repeated here because Spark's
executors have no database driver to import them from. Only ``source.mysql.events`` has the other event numbers.

Layout: MySQL documentation of the source, "Replication Protocol", "Binlog Event header" and ``Rows_event``.
"""

from __future__ import annotations

HEADER_BYTES = 19
"""Timestamp, type, server id, size, end offset and flags; the event's body follows."""
TYPE_OFFSET = 4
"""Offset of the event's type in its header, 1 byte."""
TABLE_ID_BYTES = 6
"""At the beginning of the body of a TABLE_MAP or rows event."""
ROWS_HEADER_BYTES = 8
"""Table id and flags, at the beginning of a rows event's body."""

WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = (23, 30), (24, 31), (25, 32)
"""Rows events by what they do: version 1 (MariaDB, and MySQL before 5.6) and version 2."""
FIRST_ROWS_V2 = 30
"""From this number on a rows event has extra data, behind its own length of 2 bytes, before the columns."""
