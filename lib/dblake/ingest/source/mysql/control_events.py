"""Control and rare events, decoded whole by mysql-replication's event classes: rotate, format description, Query, XA.

Called by ``transactions`` for events that come once per file, per DDL statement or per XA transaction. The classes take
10 to 20 microseconds an event, so ``events`` reads the events that come with every transaction instead. Bytes that a
class cannot read raise ValueError. A statement is read in its session's character set, which the class does not apply;
characters that Python's codec lacks are replaced. Decision 8 lists the events that the library decodes, and why.
"""

from __future__ import annotations

import codecs
from typing import Any, NamedTuple

from pymysql.charset import charset_by_id
from pymysql.protocol import MysqlPacket
from pymysqlreplication.constants.STATUS_VAR_KEY import Q_CHARSET_CODE
from pymysqlreplication.event import FormatDescriptionEvent, QueryEvent, RotateEvent, XAPrepareEvent
from pymysqlreplication.exceptions import MalformedBinLogEvent, StatusVariableMismatch
from pymysqlreplication.packet import BinLogPacketWrapper

from dblake.ingest.source.mysql.events import BODY, QUERY_COMPRESSED, Query, statement_bytes
from dblake.ingest.source.mysql.gtid_events import xa_name
from dblake.ingest.source.mysql.packed_events import uncompressed_query
from dblake.payloads.formats.mysql_charsets import CHARSETS, Charset

_POST_HEADER_BYTES = 13
"""Before the status variables of a Query event."""
_VERSION = (8, 0, 0)
"""Any version with today's layouts."""
_PAIR = "dblake.pair"
"""Decodes character sets of several bytes, also where the codec lacks some."""
_LEADS, _FIRST_TRAIL = (0x81, 0xFE), b"@"


class FormatDescription(NamedTuple):
    """How a file's events are laid out. ``created`` is when the server began the file, in seconds since 1970."""

    is_supported: bool
    has_checksums: bool
    created: int


class _Control:
    """The parts of a control connection that the library's classes call while they decode."""

    charset = "utf8mb4"

    def _get_dbms(self) -> str:
        return "mysql"


class _Query(QueryEvent):  # type: ignore[misc]
    """A Query event read up to its character set, the last status variable that matters.

    The class itself refuses variables that are newer than it; servers write those behind the character set.
    """

    def _read_status_vars_value_for_key(self, key: int) -> None:
        try:
            super()._read_status_vars_value_for_key(key)
        except StatusVariableMismatch:
            self._skip_status_vars()
        if key == Q_CHARSET_CODE:
            self._skip_status_vars()

    def _skip_status_vars(self) -> None:
        self.packet.advance(_POST_HEADER_BYTES + self.status_vars_length - self.packet.read_bytes)


def read_rotate(event: bytes) -> tuple[str, int]:
    """Return the file that a Rotate event announces, and the offset to continue at."""
    read = _decode(event, RotateEvent)
    return read.next_binlog, read.position


def read_format_description(event: bytes) -> FormatDescription:
    """Read a format description event, given with its checksum, which it always has room for."""
    read = _decode(event, FormatDescriptionEvent)
    (version,), algorithm = read.binlog_version, read.checksum_algorithm
    is_supported = version == 4 and read.common_header_len == BODY and algorithm in (0, 1)
    return FormatDescription(is_supported, algorithm == 1, read.timestamp)


def read_xa_prepare(event: bytes) -> tuple[str, bool]:
    """Return the name of the transaction that an XA_PREPARE event prepares, and whether it commits it as well."""
    read = _decode(event, XAPrepareEvent)
    return xa_name(read.xid_format_id, read.xid_gtrid, read.xid_bqual), read.one_phase


def read_query(event: bytes) -> Query:
    """Read a Query event, compressed or not; its text is decoded from the character set of its session."""
    if event[4] == QUERY_COMPRESSED:
        event = uncompressed_query(event)
    read = _decode(event, _Query)
    charset = _charset(getattr(read, "character_set_client", None))
    has_pairs = charset is not None and charset.max_bytes > 1 and charset.codec != "utf-8"
    text = statement_bytes(event).decode(charset.codec if charset else "ascii", _PAIR if has_pairs else "replace")
    return Query(text, read.schema.decode("utf-8", "replace"), getattr(read, "sql_mode", 0))


def _decode(event: bytes, kind: type) -> Any:
    """Return the library's object for an event. Raises ValueError for an event that it cannot read."""
    packet = MysqlPacket(b"\0" + event, _Control.charset)
    try:
        # Allows no class, so that it reads the header alone: a class of ours could not be chosen.
        wrapper = BinLogPacketWrapper(
            packet, {}, _Control(), _VERSION, False, (), None, None, None, None, False, False, False, False, False
        )
        return kind(wrapper, len(event) - BODY, {}, _Control(), mysql_version=_VERSION, use_checksum=False)
    except (AssertionError, MalformedBinLogEvent) as error:
        raise ValueError(f"not a valid {kind.__name__}") from error


def _replace_pair(error: UnicodeError) -> tuple[str, int]:
    """Replace two bytes that are one character to the server: the second may look like a quote or a backslash."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    lead, trail = error.object[error.start], error.object[error.start + 1 : error.start + 2]
    is_pair = _LEADS[0] <= lead <= _LEADS[1] and trail >= _FIRST_TRAIL
    return "\N{REPLACEMENT CHARACTER}", error.start + (2 if is_pair else 1)


codecs.register_error(_PAIR, _replace_pair)


def _charset(collation: int | None) -> Charset | None:
    """Return a collation's character set, None if dblake does not decode it; utf8mb4 is the server's default.

    ``binary`` is of bytes that the server takes as they are, so as utf-8: mydumper's sessions are such.
    """
    try:
        name = charset_by_id(collation).name if collation is not None else "utf8mb4"
    except KeyError:
        # PyMySQL lists the collations of older versions; all newer ones are of utf8mb4.
        name = "utf8mb4"
    return CHARSETS.get(name)
