"""GTID events: the beginning of every transaction, with its GTID, its commit time and what follows.

Place: beside ``events``. Each function reads one kind of event, given whole but for its checksum. Sets of GTIDs, from
which a log resumes, are left to ``gtids``.

Layouts: MySQL documentation of the source, "Replication Protocol", binlog events; MariaDB's "Replication Protocol".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pymysqlreplication.constants import BINLOG

from dblake.ingest.source.mysql.events import BODY
from dblake.ingest.source.mysql.gtids import Gtid

COMMIT_TIME_OFFSET = 42
"""Offset of the immediate commit timestamp (7 bytes, microseconds) in the body of MySQL's GTID event, from 8.0.1 on."""
_GTID = struct.Struct("<B16sq")
_MARIADB_GTID = struct.Struct("<QIB")
_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128


class Begin(NamedTuple):
    """The beginning of a transaction, as its GTID event has it. ``gtid`` is None if the transaction has no GTID."""

    gtid: Gtid | None
    committed_at: int | None = None
    """Microseconds since 1970; None if the event has no commit time."""
    opens: bool = False
    """True if rows follow without a BEGIN."""
    prepared: str | None = None
    """The name of the XA transaction that this one prepares."""


def read_gtid(event: bytes) -> Begin:
    """Read MySQL's GTID event. Before 8.0.1 it has no commit time."""
    _, server, number = _GTID.unpack_from(event, BODY)
    start = BODY + COMMIT_TIME_OFFSET
    # The highest bit announces an original commit time, which follows.
    micros = int.from_bytes(event[start : start + 7], "little") & ~(1 << 55) if len(event) >= start + 7 else None
    named = None if event[4] == BINLOG.ANONYMOUS_GTID_LOG_EVENT else (server.hex(), "", number)
    return Begin(named, micros)


def read_tagged_gtid(event: bytes) -> Begin:
    """Read MySQL 9's tagged GTID event: a list of numbered fields; only the first seven matter."""
    offset = BODY
    for _ in range(3):  # format version, size, last field that a reader must understand
        _, offset = _read_tagged_number(event, offset)
    server, number, tag, micros = b"", 0, "", None
    while offset < len(event):
        field, offset = _read_tagged_number(event, offset)
        if field == 1:
            digits = []
            for _ in range(16):
                digit, offset = _read_tagged_number(event, offset)
                digits.append(digit)
            server = bytes(digits)
        elif field == 3:
            size, offset = _read_tagged_number(event, offset)
            tag = event[offset : offset + size].decode()
            offset += size
        else:
            value, offset = _read_tagged_number(event, offset)
            if field == 2:
                number = value >> 1
            elif field == 6:
                micros = value
                break
    return Begin((server.hex(), tag, number), micros)


def read_mariadb_gtid(event: bytes) -> Begin:
    """Read MariaDB's GTID event, which implies BEGIN unless one standalone statement follows."""
    sequence, domain, flags = _MARIADB_GTID.unpack_from(event, BODY)
    gtid = (domain, int.from_bytes(event[5:9], "little"), sequence)
    name = None
    if flags & _PREPARED_XA:
        start = BODY + _MARIADB_GTID.size + (8 if flags & _GROUP_COMMIT else 0)
        form, first, second = struct.unpack_from("<iBB", event, start)
        branch = start + 6 + first
        name = xa_name(form, event[start + 6 : branch], event[branch : branch + second])
    # An event that completes an XA transaction precedes a standalone statement, too.
    return Begin(gtid, opens=not flags & (_STANDALONE | _COMPLETED_XA), prepared=name)


def xa_name(form: int, global_id: bytes, branch: bytes) -> str:
    """Return an XA transaction's name in the notation of the log's own statements."""
    return f"X'{global_id.hex()}',X'{branch.hex()}',{form}"


def _read_tagged_number(data: bytes, offset: int) -> tuple[int, int]:
    """Read a number of a tagged GTID event: its first byte ends with as many ones as bytes follow."""
    size = 1
    while size < 9 and data[offset] >> (size - 1) & 1:
        size += 1
    return int.from_bytes(data[offset : offset + size], "little") >> min(size, 8), offset + size
