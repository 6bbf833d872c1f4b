"""Rows of masked tables: what the source sent is decoded, masked and written anew before capture sees it.

The decoder is the one that reconcile uses, so a value is masked as the text that events would have held. What comes
out has PostgreSQL's form whatever the source: pgoutput messages, one for each change, and lines of COPY. Promises
that positions, transactions and what was not sent stay as they are. This is the one place left of landing where
Python runs for each row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.core.errors import ReconcileError, Unsupported
from dblake.core.schema import TableSchema
from dblake.decode.batch import decode
from dblake.decode.columns import AFTER, BEFORE, CREATE, DECODED, DECODER_INPUT, DELETE, OP, UNDECODED
from dblake.landing.columns import (
    CAPTURED,
    CHUNK,
    CHUNK_ID,
    FORMAT,
    KIND,
    LSN,
    PAYLOAD,
    PGOUTPUT,
    ROW,
    SCHEMA_ID,
    SEQ,
    TABLE,
)
from dblake.mask.rules import Masking

_Row = dict[str, bytes | None]
_ESCAPES = str.maketrans({"\\": r"\\", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"})
_LENGTH = struct.Struct(">I")
#: The relation's number is not written: landing says which table a row is of.
_INSERT, _UPDATE, _DELETE = (letter + bytes(4) for letter in (b"I", b"U", b"D"))


def masked_log(rows: pa.Table, schema: TableSchema, masking: Masking) -> pa.Table:
    """Row changes of one schema as CAPTURED has them, masked, by position. An event of many changes becomes many rows."""
    nulls = {f.name: pa.nulls(rows.num_rows, f.type) for f in DECODER_INPUT if f.name not in rows.schema.names}
    given = pa.table([rows[n] if n in rows.schema.names else nulls[n] for n in DECODER_INPUT.names],
                     schema=DECODER_INPUT)
    decoded = _decoded(given, schema).sort_by([(LSN, "ascending"), (SEQ, "ascending")])
    lossy = decoded[UNDECODED].to_pylist()
    before, after = (_images(decoded[side], lossy, masking) for side in (BEFORE, AFTER))
    names = masking.schema.names
    payload = [_message(op, old, new, names)
               for op, old, new in zip(decoded[OP].to_pylist(), before, after, strict=True)]
    count = decoded.num_rows
    columns = {n: decoded[n] for n in CAPTURED.names if n in DECODED.names} | {
        KIND: pa.repeat(ROW, count), SCHEMA_ID: pa.repeat(masking.schema.schema_id, count),
        FORMAT: pa.repeat(PGOUTPUT, count), PAYLOAD: pa.array(payload, pa.binary()),
    }
    return pa.table([columns[n] for n in CAPTURED.names], schema=CAPTURED)


def masked_lines(payload: pa.BinaryArray, format_: str, schema: TableSchema, masking: Masking) -> pa.BinaryArray:
    """Rows that a chunk read as lines of COPY, masked, in their order."""
    count = len(payload)
    told = {
        KIND: pa.repeat(CHUNK, count), TABLE: pa.repeat(schema.table, count), FORMAT: pa.repeat(format_, count),
        SCHEMA_ID: pa.repeat(schema.schema_id, count), SEQ: pa.array(np.arange(count)), PAYLOAD: payload,
        CHUNK_ID: pa.repeat("", count),
    }
    given = pa.table([told[f.name] if f.name in told else pa.nulls(count, f.type) for f in DECODER_INPUT],
                     schema=DECODER_INPUT)
    decoded = _decoded(given, schema).sort_by(SEQ)
    names = masking.schema.names
    rows = _images(decoded[AFTER], decoded[UNDECODED].to_pylist(), masking)
    return pa.array((b"\t".join(_copied(row[n]) for n in names) + b"\n" for row in rows if row is not None),
                    pa.binary())


def _decoded(rows: pa.Table, schema: TableSchema) -> pa.Table:
    try:
        decoded = [decode(batch, {schema.schema_id: schema}) for batch in rows.combine_chunks().to_batches()]
    except ReconcileError as error:
        raise Unsupported(f"{error.what}; its table is masked", next_step=error.next_step) from error
    return pa.Table.from_batches(decoded, schema=DECODED).combine_chunks()


def _images(column: pa.ChunkedArray, lossy: Sequence[list[str] | None], masking: Masking) -> Iterator[_Row | None]:
    """Images as bytes by column, masked; None where there is none."""
    rules, value_of = masking.rules, masking.value
    at = 0
    for image in column.chunks:
        ends, valid = image.offsets.to_pylist(), image.is_valid().to_pylist()
        names, values = image.keys.to_pylist(), image.items.to_pylist()
        for number, there in enumerate(valid):
            undecoded, row = lossy[at], _Row()
            at += 1
            if not there:
                yield None
                continue
            for cell in range(ends[number], ends[number + 1]):
                name, value = names[cell], values[cell]
                rule = rules.get(name)
                if rule is None:
                    row[name] = value if value is None else _bytes(value, undecoded is not None and name in undecoded)
                elif rule.does != "drop":
                    row[name] = value if value is None else value_of(rule, value).encode()
            yield row


def _bytes(text: str, undecoded: bool) -> bytes:
    """A value as it came: bytes that are no text stand as hex, and are to be named for it once more."""
    if undecoded and text.startswith("\\x"):
        try:
            raw = bytes.fromhex(text[2:])
            raw.decode()
        except UnicodeDecodeError:
            return raw
        except ValueError:
            pass
    return text.encode()


def _message(op: str, old: _Row | None, new: _Row | None, names: Sequence[str]) -> bytes:
    if op == DELETE:
        return _DELETE + _tuple(b"O", old or {}, names)
    written = _tuple(b"N", new or {}, names)
    if op == CREATE:
        return _INSERT + written
    return _UPDATE + (b"" if old is None else _tuple(b"O", old, names)) + written


def _tuple(letter: bytes, row: _Row, names: Sequence[str]) -> bytes:
    parts = [letter, len(names).to_bytes(2)]
    for name in names:
        if name not in row:
            parts.append(b"u")
        elif (value := row[name]) is None:
            parts.append(b"n")
        else:
            parts += (b"t", _LENGTH.pack(len(value)), value)
    return b"".join(parts)


def _copied(value: bytes | None) -> bytes:
    if value is None:
        return rb"\N"
    # Latin-1 maps bytes to letters one for one, whatever they are.
    return value.decode("latin-1").translate(_ESCAPES).encode("latin-1")


def in_order(parts: Sequence[pa.Table]) -> pa.Table:
    """Pieces of one stretch of log put together again, by position; at one position in the order given."""
    rows = pa.concat_tables(parts)
    return rows.take(pc.sort_indices(rows, sort_keys=[(LSN, "ascending"), (SEQ, "ascending")]))
