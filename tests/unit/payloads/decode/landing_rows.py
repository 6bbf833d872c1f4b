"""Landing rows for the decoder's tests, with the dull columns filled in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from dblake.base.core.schema import Column, TableSchema
from dblake.payloads.decode.columns import DECODED, DECODER_INPUT

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def schema_of(table: str, names: str, key: str = "") -> TableSchema:
    """``schema_of("public.t", "b x a", "a b")``: columns in the log's order, key in key order."""
    keys = key.split()
    return TableSchema(
        table, tuple(Column(n, "text", n not in keys, keys.index(n) + 1 if n in keys else None) for n in names.split())
    )


def log_row(schema: TableSchema, payload: bytes | None, **facts: Any) -> dict[str, Any]:
    return {
        "batch": 7, "incarnation": 1, "lsn": 4711, "seq": 4, "kind": "row", "table": schema.table,
        "schema_id": schema.schema_id, "txid": 99, "committed_at": AT, "last_in_txn": True, "chunk_id": None,
        "format": "pgoutput", "payload": payload, **facts,
    }


def chunk_row(schema: TableSchema, payload: bytes | None, **facts: Any) -> dict[str, Any]:
    return log_row(
        schema, payload,
        **{"lsn": None, "kind": "chunk", "txid": None, "committed_at": None, "last_in_txn": None, "chunk_id": "d1-3",
           "format": "copy", **facts},
    )


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=DECODER_INPUT)


def events_of(decoded: pa.RecordBatch) -> list[dict[str, Any]]:
    """Validate the batch; return its decoded rows in the order of their positions."""
    assert decoded.schema == DECODED
    decoded.validate(full=True)
    return sorted(decoded.to_pylist(), key=lambda e: (e["batch"], e["lsn"] or 0, e["seq"]))
