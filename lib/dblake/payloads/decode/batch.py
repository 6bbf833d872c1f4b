"""Decode a batch of landing rows: the entry point of all decoders.

First step right of landing: reconcile calls it for each Arrow batch of Spark's. Guarantee: every landing row becomes
one row or more, with its position, or an error names the row. The caller chooses the rows of landing and their order;
one module per format reads the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.schema import TableSchema
from dblake.landing import columns as landing
from dblake.landing.columns import FORMAT, KIND, LAST_IN_TXN, SCHEMA_ID, SEQ
from dblake.payloads.decode import binlog_rows, copy_text, mysql_rows, pgoutput
from dblake.payloads.decode.columns import (
    AFTER,
    BEFORE,
    DECODED,
    DECODER_INPUT,
    IMAGE,
    KEY,
    KEY_BEFORE,
    OP,
    PARTIAL,
    UNDECODED,
)
from dblake.payloads.decode.payloads import Changes, Decoder, Payloads, decode_error

#: Decoders by kind and format. A new format gets a module and a line here.
DECODERS: Mapping[tuple[str, str], Decoder] = {
    (landing.ROW, landing.PGOUTPUT): pgoutput.decode,
    (landing.ROW, landing.BINLOG_ROWS): binlog_rows.decode,
    (landing.CHUNK, landing.COPY): copy_text.decode,
    (landing.CHUNK, landing.MYSQL_ROWS): mysql_rows.decode,
}


def decode(
    batch: pa.RecordBatch, schemas: Mapping[str, TableSchema], *, keys_alone: bool = False
) -> pa.RecordBatch:
    """Decode landing rows of kind ``row``, ``truncate`` and ``chunk``; returns the DECODED columns, in any order.

    ``batch`` has the DECODER_INPUT columns, in any of Arrow's layouts for them. ``schemas`` are by schema id. With
    ``keys_alone`` the images of chunk rows have the columns of the primary key only, at a fraction of the cost.
    Raises ReconcileError for a row that cannot be decoded: another kind, an unknown schema, malformed bytes.
    """
    rows = batch.select(DECODER_INPUT.names).cast(DECODER_INPUT)
    decoded = [part for run in _runs(rows) for part in _decode_run(run, schemas, keys_alone)]
    if not decoded:
        return pa.RecordBatch.from_pylist([], schema=DECODED)
    return decoded[0] if len(decoded) == 1 else pa.concat_batches(decoded)


@dataclass(frozen=True, slots=True)
class _PayloadRun:
    """Rows of one kind, format and schema."""

    kind: str | None
    format: str | None
    schema_id: str | None
    rows: pa.RecordBatch


def _runs(rows: pa.RecordBatch) -> Iterator[_PayloadRun]:
    """Yield the rows grouped by kind, format and schema; within a run in their own order."""
    if rows.num_rows == 0:
        return
    code = np.zeros(rows.num_rows, np.int64)
    for name in (KIND, FORMAT, SCHEMA_ID):
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy()
    if (code != code[0]).any():
        order = np.argsort(code, kind="stable")
        rows, code = rows.take(pa.array(order)), code[order]
    starts = np.append(0, np.flatnonzero(np.diff(code)) + 1)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        run = rows.slice(start, end - start)
        kind, payload_format, schema_id = (run.column(name)[0].as_py() for name in (KIND, FORMAT, SCHEMA_ID))
        yield _PayloadRun(kind, payload_format, schema_id, run)


def _decode_run(run: _PayloadRun, schemas: Mapping[str, TableSchema], keys_alone: bool) -> Iterator[pa.RecordBatch]:
    if run.kind == landing.TRUNCATE:
        yield _decoded(run.rows, _truncate_changes(run.rows.num_rows))
        return
    decoder = DECODERS.get((run.kind or "", run.format or ""))
    if decoder is None:
        raise decode_error(
            run.rows, 0, f"there is no decoder for rows of kind {run.kind}",
            next_step="pass rows of kind row, truncate and chunk only, or run a version that reads this format",
        )
    schema = schemas.get(run.schema_id or "")
    if schema is None:
        raise decode_error(
            run.rows, 0, f"the schema {run.schema_id} is not known",
            next_step="search landing for its schema row; without one, dump the table again",
        )
    for changes in decoder(Payloads.of(run.rows, schema, keys_alone=keys_alone)):
        yield _decoded(run.rows, changes)


def _truncate_changes(count: int) -> Changes:
    none = pa.nulls(count, IMAGE)
    return Changes(
        op=pa.repeat(Op.TRUNCATE, count), key=none, before=none, after=none, partial=pa.repeat(False, count),
        undecoded=pa.nulls(count, DECODED.field(UNDECODED).type),
    )


def _decoded(rows: pa.RecordBatch, changes: Changes) -> pa.RecordBatch:
    """Return changes as DECODED, with the landing columns of their rows."""
    landed = rows.select([name for name in DECODED.names if name in DECODER_INPUT.names])
    if changes.row is not None and not np.array_equal(changes.row, np.arange(rows.num_rows)):
        landed = landed.take(pa.array(changes.row))
    columns = dict(zip(landed.schema.names, landed.columns, strict=True))
    if changes.step is not None:
        columns[SEQ] = pc.add(columns[SEQ], pa.array(changes.step))
    if changes.closing is not None:
        columns[LAST_IN_TXN] = pc.and_(columns[LAST_IN_TXN], pa.array(changes.closing))
    columns |= {
        OP: changes.op, KEY: changes.key, BEFORE: changes.before, AFTER: changes.after,
        PARTIAL: changes.partial, UNDECODED: changes.undecoded,
        KEY_BEFORE: pa.nulls(len(changes.op), IMAGE) if changes.key_before is None else changes.key_before,
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in DECODED.names], schema=DECODED)
