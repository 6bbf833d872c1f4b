"""Rows of masked tables: decodes what the source sent, masks it, and encodes it again before capture receives it.

Uses reconcile's decoder, so a value is masked as the text that events would have held. The output is in PostgreSQL's
format for every source: pgoutput messages, one a row change, and lines of COPY. Guarantee: positions, transactions and
columns that were not sent stay as they are. This is the one place before landing where Python runs for each row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.errors import ReconcileError, Unsupported
from dblake.base.core.op import Op
from dblake.base.core.schema import TableSchema
from dblake.ingest.mask.masks import Masking
from dblake.landing.columns import (
    CAPTURED,
    CHUNK,
    CHUNK_ID,
    FORMAT,
    KIND,
    LAST_IN_TXN,
    LSN,
    PAYLOAD,
    PGOUTPUT,
    ROW,
    SCHEMA_ID,
    SEQ,
    TABLE,
)
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import AFTER, BEFORE, DECODED, DECODER_INPUT, KEY_BEFORE, OP, UNDECODED

_Row = dict[str, bytes | None]
_ESCAPES = str.maketrans({"\\": r"\\", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"})
_LENGTH = struct.Struct(">I")
#: Without the relation's number: the landing row names the table.
_INSERT, _UPDATE, _DELETE = (letter + bytes(4) for letter in (b"I", b"U", b"D"))


def mask_log(rows: pa.Table, schema: TableSchema, masking: Masking) -> pa.Table:
    """Return row changes of one schema masked: CAPTURED columns in, CAPTURED columns out, by position.

    An event of many changes becomes many rows. Raises Unsupported if a row cannot be decoded.
    """
    decoded = _decode(_decoder_input(rows), schema).sort_by([(LSN, "ascending"), (SEQ, "ascending")])
    undecoded = decoded[UNDECODED].to_pylist()
    before, after = (_masked_images(decoded[side], undecoded, masking) for side in (BEFORE, AFTER))
    names = masking.schema.names
    changes = list(zip(decoded[OP].to_pylist(), before, after, strict=True))
    # The delete and the create of a key change are one update again, from which the decoder learns the old key.
    created = np.flatnonzero(decoded[KEY_BEFORE].is_valid().to_numpy())
    last = decoded[LAST_IN_TXN].to_numpy().copy()
    for index in created.tolist():
        changes[index - 1] = Op.UPDATE, changes[index - 1][1], changes[index][2]
        last[index - 1] = last[index]
    payload = pa.array((_message(op, old, new, names) for op, old, new in changes), pa.binary())
    count = decoded.num_rows
    columns = {n: decoded[n] for n in CAPTURED.names if n in DECODED.names} | {
        KIND: pa.repeat(ROW, count), SCHEMA_ID: pa.repeat(masking.schema.schema_id, count),
        FORMAT: pa.repeat(PGOUTPUT, count), PAYLOAD: payload, LAST_IN_TXN: pa.array(last, pa.bool_()),
    }
    return pa.table([columns[n] for n in CAPTURED.names], schema=CAPTURED).take(
        pa.array(np.delete(np.arange(count), created))
    )


def mask_chunk(payload: pa.BinaryArray, format_: str, schema: TableSchema, masking: Masking) -> pa.BinaryArray:
    """Return a chunk's payloads masked, as lines of COPY in their order.

    Raises Unsupported if a row cannot be decoded.
    """
    count = len(payload)
    rows = pa.table({
        KIND: pa.repeat(CHUNK, count), TABLE: pa.repeat(schema.table, count), FORMAT: pa.repeat(format_, count),
        SCHEMA_ID: pa.repeat(schema.schema_id, count), SEQ: pa.array(np.arange(count)), PAYLOAD: payload,
        CHUNK_ID: pa.repeat("", count),
    })
    decoded = _decode(_decoder_input(rows), schema).sort_by(SEQ)
    names = masking.schema.names
    images = _masked_images(decoded[AFTER], decoded[UNDECODED].to_pylist(), masking)
    return pa.array((b"\t".join(_copy_field(image[n]) for n in names) + b"\n" for image in images if image is not None),
                    pa.binary())


def merge_by_position(parts: Sequence[pa.Table]) -> pa.Table:
    """Return CAPTURED rows of several tables in order of their position; rows of one position keep their order."""
    rows = pa.concat_tables(parts)
    return rows.take(pc.sort_indices(rows, sort_keys=[(LSN, "ascending"), (SEQ, "ascending")]))


def _decoder_input(rows: pa.Table) -> pa.Table:
    """Return rows with the DECODER_INPUT columns; missing ones are null."""
    return pa.table(
        [rows[f.name] if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type) for f in DECODER_INPUT],
        schema=DECODER_INPUT,
    )


def _decode(rows: pa.Table, schema: TableSchema) -> pa.Table:
    try:
        decoded = [decode(batch, {schema.schema_id: schema}) for batch in rows.combine_chunks().to_batches()]
    except ReconcileError as error:
        raise Unsupported(f"{error.what}; its table is masked", next_step=error.next_step) from error
    return pa.Table.from_batches(decoded, schema=DECODED).combine_chunks()


def _masked_images(
    column: pa.ChunkedArray, undecoded: Sequence[list[str] | None], masking: Masking
) -> Iterator[_Row | None]:
    """Yield each image as masked bytes by column; None where there is no image.

    ``undecoded`` names, for each row, the columns whose value the decoder could not turn into text.
    """
    rules, mask_value = masking.rules, masking.mask_value
    row_index = 0
    for image in column.chunks:
        ends, valid = image.offsets.to_pylist(), image.is_valid().to_pylist()
        names, values = image.keys.to_pylist(), image.items.to_pylist()
        for number, has_image in enumerate(valid):
            as_hex, row = undecoded[row_index], _Row()
            row_index += 1
            if not has_image:
                yield None
                continue
            for cell in range(ends[number], ends[number + 1]):
                name, value = names[cell], values[cell]
                rule = rules.get(name)
                if rule is None:
                    row[name] = value if value is None else _to_bytes(value, as_hex is not None and name in as_hex)
                elif rule.does != "drop":
                    row[name] = value if value is None else mask_value(rule, value).encode()
            yield row


def _to_bytes(text: str, is_undecoded: bool) -> bytes:
    """Return a value as the source sent it: the decoder shows bytes that are not UTF-8 in hexadecimal digits."""
    if is_undecoded and text.startswith("\\x"):
        try:
            raw = bytes.fromhex(text[2:])
            raw.decode()
        except UnicodeDecodeError:
            return raw
        except ValueError:
            pass
    return text.encode()


def _message(op: str, old: _Row | None, new: _Row | None, names: Sequence[str]) -> bytes:
    """Return a pgoutput Insert, Update or Delete message (PostgreSQL, "Logical Replication Message Formats")."""
    if op == Op.DELETE:
        return _DELETE + _tuple(b"O", old or {}, names)
    written = _tuple(b"N", new or {}, names)
    if op == Op.CREATE:
        return _INSERT + written
    return _UPDATE + (b"" if old is None else _tuple(b"O", old, names)) + written


def _tuple(letter: bytes, row: _Row, names: Sequence[str]) -> bytes:
    """Return pgoutput's TupleData; a column that was not sent is an unchanged TOASTed value."""
    parts = [letter, len(names).to_bytes(2)]
    for name in names:
        if name not in row:
            parts.append(b"u")
        elif (value := row[name]) is None:
            parts.append(b"n")
        else:
            parts += (b"t", _LENGTH.pack(len(value)), value)
    return b"".join(parts)


def _copy_field(value: bytes | None) -> bytes:
    """Return a value as a field of COPY's text format."""
    if value is None:
        return rb"\N"
    # Latin-1 maps each byte to one character, whatever the encoding is.
    return value.decode("latin-1").translate(_ESCAPES).encode("latin-1")
