"""Binlog events and packets as servers send them, built byte by byte from the documented layouts."""

from __future__ import annotations

import struct
import zlib

_HEADER = struct.Struct("<IBIIIH")


def event(kind: int, body: bytes = b"", *, end: int = 0, flags: int = 0, stamp: int = 1_700_000_000) -> bytes:
    """Return an event with its checksum; ``end`` is where it ends in the file."""
    head = _HEADER.pack(stamp, kind, 9, 19 + len(body) + 4, end & 0xFFFFFFFF, flags)
    return head + body + struct.pack("<I", zlib.crc32(head + body))


def plain(whole: bytes) -> bytes:
    """Return an event without its checksum."""
    return whole[:-4]


class File:
    """Events one after another in a file, each at its place."""

    def __init__(self, name: str, offset: int = 4, created: int = 1_600_000_000) -> None:
        self.name, self.at = name, offset
        body = struct.pack("<H50sIB", 4, b"8.4.0", 0, 19) + bytes(40) + b"\x01"
        fake = struct.pack("<Q", offset) + name.encode()
        self.events = [event(4, fake, flags=0x20, stamp=0), event(15, body, stamp=created)]
        self.starts: list[int] = []

    def add(self, kind: int, body: bytes = b"", **facts: int) -> File:
        self.starts.append(self.at)
        self.at += 19 + len(body) + 4
        self.events.append(event(kind, body, end=self.at, **facts))
        return self

    def gtid(self, number: int = 1, micros: int = 1_700_000_000_123_456) -> File:
        stamp = micros.to_bytes(7, "little")
        return self.add(33, b"\x00" + bytes(15) + b"\x07" + struct.pack("<qBqq", number, 2, 0, 1) + stamp + b"\x00")

    def query(self, text: str, schema: str = "shop", status: bytes = b"") -> File:
        head = struct.pack("<IIBHH", 1, 0, len(schema), 0, len(status))
        return self.add(2, head + status + schema.encode() + b"\x00" + text.encode())

    def table(self, number: int, schema: str, name: str) -> File:
        """Add the map of a table ``(id int primary key)``."""
        return self.add(19, table_map(number, schema, name))

    def rows(self, number: int, kind: int = 30, body: bytes = b"\x01\xff\x00\x07\x00\x00\x00", **facts: int) -> File:
        extra = b"\x02\x00" if kind >= 30 else b""
        return self.add(kind, number.to_bytes(6, "little") + b"\x01\x00" + extra + body, **facts)

    def xid(self) -> File:
        return self.add(16, bytes(8))

    def change(self, table: str = "t", number: int = 1) -> File:
        """Add a whole transaction of one row."""
        return self.gtid(number).query("BEGIN").table(1, "shop", table).rows(1).xid()

    def rotate(self, to: File) -> File:
        """End the file and append the events of the next one."""
        self.add(4, struct.pack("<Q", 4) + to.name.encode())
        self.events += to.events
        return self


def table_map(number: int, schema: str, name: str) -> bytes:
    metadata = b"\x01\x01\x00" + b"\x04\x03\x02id" + b"\x08\x01\x00"
    names = bytes([len(schema)]) + schema.encode() + b"\x00" + bytes([len(name)]) + name.encode() + b"\x00"
    return number.to_bytes(6, "little") + b"\x01\x00" + names + b"\x01\x03\x00\x00" + metadata


def xa_prepare(name: bytes, *, one_phase: bool = False) -> bytes:
    return bytes([one_phase]) + struct.pack("<iII", 1, len(name), 0) + name


def packet(payload: bytes, number: int = 0) -> bytes:
    """Packets as many as it takes."""
    out = b""
    while True:
        part, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
        out += len(part).to_bytes(3, "little") + bytes([number & 0xFF]) + part
        number += 1
        if len(part) < 0xFFFFFF:
            return out
