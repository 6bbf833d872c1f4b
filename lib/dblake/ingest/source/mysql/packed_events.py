"""Compressed events and payloads of packed events, as the events that they were made from.

Place: below ``transactions`` and ``control_events``, which read the events. Guarantee: content that is cut off or has
an unknown compression is an error, never a shorter event. Unpacked events have no checksum.

Layouts: MySQL documentation of the source, "Replication Protocol", binlog events; for numbers from 160 on, MariaDB's
"Replication Protocol".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa
from pymysqlreplication.constants import BINLOG

from dblake.ingest.source.mysql.events import BODY, HEADER, QUERY_HEADER, UPDATES
from dblake.ingest.source.mysql.length_encoded import read_packed
from dblake.payloads.formats.binlog import FIRST_ROWS_V2, ROWS_HEADER_BYTES

COMPRESSED_ROWS = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
"""MariaDB's compressed rows events, by the type that each unpacks to."""
_UNCOMPRESSED, _ZSTD = 255, 0


def uncompressed_query(event: bytes) -> bytes:
    """Return MariaDB's compressed Query event as the Query event it was made from."""
    _, _, schema, _, status = QUERY_HEADER.unpack_from(event, BODY)
    text = BODY + QUERY_HEADER.size + status + schema + 1
    return _with_body(event, BINLOG.QUERY_EVENT, event[BODY:text] + _inflate(event, text))


def uncompressed_rows(event: bytes) -> bytes:
    """Return MariaDB's compressed rows event as the rows event it was made from, its size without a checksum."""
    kind = COMPRESSED_ROWS[event[4]]
    offset = BODY + ROWS_HEADER_BYTES
    if kind >= FIRST_ROWS_V2:
        offset += int.from_bytes(event[offset : offset + 2], "little")
    width, offset = read_packed(event, offset)
    offset += (width + 7) // 8 * (2 if kind in UPDATES else 1)
    return _with_body(event, kind, event[BODY:offset] + _inflate(event, offset))


def _with_body(event: bytes, kind: int, body: bytes) -> bytes:
    stamp, _, server, _, end, flags = HEADER.unpack_from(event)
    return HEADER.pack(stamp, kind, server, BODY + len(body), end, flags) + body


def unpack_payload(event: bytes) -> Iterator[bytes]:
    """Yield the events of a TRANSACTION_PAYLOAD event, decompressed as they are consumed; they have no checksums.

    Raises ValueError for an unknown compression or a payload that is cut off.
    """
    offset, size, compression = BODY, 0, _ZSTD
    while True:
        field, offset = read_packed(event, offset)
        if field == 0:
            break
        length, offset = read_packed(event, offset)
        value, _ = read_packed(event, offset)
        if field == 1:
            size = value
        elif field == 2:
            compression = value
        offset += length
    if compression not in (_ZSTD, _UNCOMPRESSED):
        raise ValueError(f"compression {compression}")
    packed = event[offset : offset + size]
    if len(packed) != size:
        raise ValueError("the payload is cut off")
    with pa.input_stream(pa.py_buffer(packed), compression="zstd" if compression == _ZSTD else None) as stream:
        while head := stream.read(BODY):
            rest = HEADER.unpack(head)[3] - BODY
            inner = head + stream.read(rest)
            if len(inner) != BODY + rest:
                raise ValueError("an event is cut off")
            yield inner


def _inflate(data: bytes, offset: int) -> bytes:
    """Decompress MariaDB's format: a byte with the size of the length, the length, and a zlib stream."""
    if data[offset] & 0xF0 != 0x80:
        raise ValueError("compression")
    start = offset + 1 + (data[offset] & 7)
    return zlib.decompress(data[start:], bufsize=int.from_bytes(data[offset + 1 : start], "big"))
