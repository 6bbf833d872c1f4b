"""The executable specification of decoding: one landing row at a time, to compare the vectorised decoder with.

Layouts: PostgreSQL documentation, "Logical Replication Message Formats" (Insert, Update, Delete, TupleData; protocol
version 1, text values) and the reference page of ``COPY``, section "Text Format".
"""

from __future__ import annotations

import struct
from typing import Any

from dblake.base.core.schema import TableSchema

Cell = tuple[str, bytes]
"""A tag (t text, n NULL, u unchanged) and the bytes of a text."""


class Refused(Exception):
    """The payload violates its format."""


def decode_row(row: dict[str, Any], schema: TableSchema) -> list[dict[str, Any]]:
    """Return a landing row's events, in order. Raises Refused if the payload violates its format."""
    try:
        return _events(row, schema)
    except (IndexError, KeyError, struct.error) as error:
        raise Refused from error


def _events(row: dict[str, Any], schema: TableSchema) -> list[dict[str, Any]]:
    if row["kind"] == "truncate":
        return [_event(row, schema, 0, "t")]
    if row["kind"] == "chunk":
        cells = _copy_cells(row["payload"], len(schema.columns))
        image = dict(zip(schema.names, cells, strict=True))
        return [_event(row, schema, 0, "r", key=_key(image, schema), after=image)]

    letter, old, new = _message(row["payload"], len(schema.columns))
    before = after = None
    if old is not None:
        kind, cells = old
        unsent = "n" if kind == "K" else "u"
        before = {name: cell for name, cell in zip(schema.names, cells, strict=True) if cell[0] not in (unsent, "u")}
    if new is not None:
        after = {}
        for name, cell in zip(schema.names, new, strict=True):
            if cell[0] != "u":
                after[name] = cell
            elif before is not None and name in before:
                after[name] = before[name]
    old_key = _key(before, schema) if before is not None else None
    new_key = _key(after, schema) if after is not None else None

    if letter == "I":
        return [_event(row, schema, 0, "c", key=new_key, after=after)]
    if letter == "D":
        return [_event(row, schema, 0, "d", key=old_key, before=before)]
    if before is None or old_key == new_key:
        return [_event(row, schema, 0, "u", key=new_key, before=before, after=after)]
    delete = _event(row, schema, 0, "d", key=old_key, before=before)
    delete["last_in_txn"] = False
    return [delete, _event(row, schema, 1, "c", key=new_key, after=after, key_before=old_key)]


def _message(payload: bytes, columns: int) -> tuple[str, tuple[str, list[Cell]] | None, list[Cell] | None]:
    letter, at = chr(payload[0]), 5
    old = new = None
    if letter not in "IUD":
        raise Refused
    if letter in "UD" and chr(payload[at]) in "KO":
        kind = chr(payload[at])
        cells, at = _tuple(payload, at + 1, columns)
        old = kind, cells
    if letter in "IU":
        if chr(payload[at]) != "N":
            raise Refused
        new, at = _tuple(payload, at + 1, columns)
    if at != len(payload) or (letter == "D" and old is None):
        raise Refused
    return letter, old, new


def _tuple(payload: bytes, at: int, columns: int) -> tuple[list[Cell], int]:
    (count,) = struct.unpack_from(">H", payload, at)
    at += 2
    if count != columns:
        raise Refused
    cells: list[Cell] = []
    for _ in range(count):
        tag = chr(payload[at])
        at += 1
        value = b""
        if tag == "t":
            (length,) = struct.unpack_from(">I", payload, at)
            value = payload[at + 4 : at + 4 + length]
            at += 4 + length
        elif tag not in "nu":
            raise Refused
        cells.append((tag, value))
    return cells, at


_ESCAPES = {"b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v", "\\": b"\\"}


def _copy_cells(line: bytes, columns: int) -> list[Cell]:
    if line.count(b"\n") != 1 or line[-1:] != b"\n":
        raise Refused
    values = line[:-1].split(b"\t") if columns or line != b"\n" else []
    if len(values) != columns:
        raise Refused
    cells: list[Cell] = []
    for raw in values:
        if raw == b"\\N":
            cells.append(("n", b""))
            continue
        value, at = b"", 0
        while at < len(raw):
            if raw[at] == ord("\\"):
                value += _ESCAPES[chr(raw[at + 1])]
                at += 2
            else:
                value += raw[at : at + 1]
                at += 1
        cells.append(("t", value))
    return cells


def _key(image: dict[str, Cell], schema: TableSchema) -> dict[str, Cell] | None:
    if not schema.primary_key:
        return None
    if any(image.get(name, ("n", b""))[0] != "t" for name in schema.primary_key):
        raise Refused
    return {name: image[name] for name in schema.primary_key}


def _event(
    row: dict[str, Any], schema: TableSchema, step: int, op: str, *, key: dict[str, Cell] | None = None,
    before: dict[str, Cell] | None = None, after: dict[str, Cell] | None = None,
    key_before: dict[str, Cell] | None = None,
) -> dict[str, Any]:
    undecoded = set()

    def text(name: str, cell: Cell) -> str | None:
        tag, value = cell
        if tag == "n":
            return None
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            undecoded.add(name)
            return "\\x" + value.hex()

    def image(cells: dict[str, Cell] | None) -> list[tuple[str, str | None]] | None:
        return None if cells is None else [(name, text(name, cell)) for name, cell in cells.items()]

    event = {
        "batch": row["batch"], "incarnation": row["incarnation"], "lsn": row["lsn"], "seq": row["seq"] + step,
        "table": row["table"], "op": op, "key": image(key), "before": image(before), "after": image(after),
        "partial": after is not None and len(after) < len(schema.columns),
        "schema_id": row["schema_id"], "txid": row["txid"], "committed_at": row["committed_at"],
        "last_in_txn": row["last_in_txn"], "chunk_id": row["chunk_id"],
    }
    event["undecoded"] = [name for name in schema.names if name in undecoded] or None
    event["key_before"] = image(key_before)
    return event
