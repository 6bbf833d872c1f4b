"""The layout of pgoutput's messages that more than one module reads or writes, protocol version 1, values as text.

Used by the PostgreSQL source, the in-memory source, masking and decoding, so that a letter or an offset is declared
once. Layout: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = b"BCRIUDTM"
"""A message's first byte."""
LETTER_OFFSET = 0
RELATION_OFFSET = 1
"""Offset of the relation's number in Relation, Insert, Update and Delete messages."""
RELATION_BYTES = 4
"""Size of a relation's number, big-endian."""
TUPLE_OFFSET = RELATION_OFFSET + RELATION_BYTES
"""Offset of the first tuple's letter in Insert, Update and Delete messages."""
TRUNCATE_RELATIONS_OFFSET = 6
"""Offset of the first relation's number in a Truncate message: behind the letter, their count and the options."""

NEW_TUPLE, KEY_TUPLE, OLD_TUPLE = b"NKO"
"""A tuple's first byte: the new row, the replica identity's columns of the old row, or the whole old row."""
COUNT_BYTES = 2
"""The number of a tuple's columns, big-endian, behind its letter."""

TEXT, NULL, UNCHANGED = b"tnu"
"""A value's first byte: text behind its length, NULL, or unchanged and stored out of line (TOAST), so not sent."""
LENGTH_BYTES = 4
"""The length of a text value, big-endian."""
