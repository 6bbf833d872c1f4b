"""Parses the pgoutput messages that capture needs: transactions, truncates, watermarks.

Row messages pass unparsed; Spark decodes them. Relation messages are left to ``relation_messages``. Layouts: PostgreSQL
documentation, "Logical Replication Message Formats", protocol version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dblake.ingest.source.postgres.relation_messages import read_string
from dblake.ingest.source.postgres.settings import PostgresSettings

_BEGIN = np.dtype([("kind", "u1"), ("lsn", ">u8"), ("committed_at", ">i8"), ("xid", ">u4")])
_COMMIT = struct.Struct(">cBQQq")
_EPOCH_2000_MICROSECONDS = 946_684_800_000_000


def stream_options(settings: PostgresSettings) -> dict[str, str]:
    """Return the options to start the stream with."""
    messages = {"messages": "true"} if settings.log_ddl or settings.watermarks == "messages" else {}
    quoted = settings.publication.replace('"', '""')
    return {"proto_version": "1", "publication_names": f'"{quoted}"', **messages}


def parse_begins(payloads: Sequence[bytes]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the commit's ``lsn``, ``committed_at`` (microseconds since 1970) and 32-bit ``xid`` of Begin messages."""
    begins = np.frombuffer(b"".join(payloads), _BEGIN)
    columns = {name: begins[name].astype(np.int64) for name in ("lsn", "committed_at", "xid")}
    columns["committed_at"] += _EPOCH_2000_MICROSECONDS
    return columns


def parse_commit_end(payload: bytes) -> int:
    """Return the LSN after the commit record: where the log resumes once this transaction has landed."""
    end: int = _COMMIT.unpack_from(payload)[3]
    return end


def split_truncate(payload: bytes) -> list[bytes]:
    """Return a Truncate message of several tables as one message for each; landing has a row for each."""
    return [b"T\0\0\0\1" + payload[5:6] + payload[at : at + 4] for at in range(6, len(payload), 4)]


def parse_message(payload: bytes) -> tuple[str, bytes] | None:
    """Return prefix and content of a Message (``pg_logical_emit_message``); None if it is not transactional."""
    if not payload[1] & 1:
        return None
    prefix, at = read_string(payload, 10)
    return prefix, payload[at + 4 : at + 4 + int.from_bytes(payload[at : at + 4])]


def parse_watermark(payload: bytes) -> tuple[int, str]:
    """Return id and value of the new row in an Update of the watermark table; NULL (set by hand) becomes empty."""
    at = 8 if payload[5:6] == b"N" else _skip_old_row(payload) + 3
    reader, at = _read_value(payload, at)
    value, _ = _read_value(payload, at)
    return int(reader), value


def _read_value(payload: bytes, at: int) -> tuple[str, int]:
    """Return one value of a row and the offset of the next."""
    if payload[at : at + 1] != b"t":
        return "", at + 1
    end = at + 5 + int.from_bytes(payload[at + 1 : at + 5])
    return payload[at + 5 : end].decode(), end


def _skip_old_row(payload: bytes) -> int:
    (count,) = struct.unpack_from(">H", payload, 6)
    at = 8
    for _ in range(count):
        _, at = _read_value(payload, at)
    return at
