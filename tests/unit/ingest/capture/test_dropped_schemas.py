"""A dropped database truncates its captured tables."""

from __future__ import annotations

import json

import pyarrow as pa

from dblake.ingest.capture.dropped_schemas import expand_dropped_schemas
from dblake.landing.columns import CAPTURED, DDL, ROW, TRUNCATE


def rows(*cells: tuple[str, str | None, int, bool, object]) -> pa.Table:
    return pa.Table.from_pylist([
        {"incarnation": 1, "lsn": 7, "kind": kind, "table": table, "seq": seq, "last_in_txn": last,
         "payload": json.dumps(payload).encode()}
        for kind, table, seq, last, payload in cells
    ], schema=CAPTURED)


def test_dropped_schema_truncates_its_tables() -> None:
    log = rows((ROW, "d.a", 2, False, 0), (DDL, None, 8, True, {"dropped_schema": "d"}), (ROW, "e.a", 2, True, 0))
    expanded = expand_dropped_schemas(log, {"e.a", "d.b", "d.a"})
    assert [tuple(row[name] for name in ("kind", "table", "seq", "last_in_txn")) for row in expanded.to_pylist()] == [
        (ROW, "d.a", 2, False), (TRUNCATE, "d.a", 8, False), (TRUNCATE, "d.b", 10, True), (ROW, "e.a", 2, True),
    ]


def test_other_statements_and_unknown_schemas_stay() -> None:
    log = rows((DDL, None, 2, True, {"rewrites": False}), (DDL, None, 2, True, {"dropped_schema": "x"}),
               (DDL, "d.a", 2, True, {"rewrites": True}))
    assert expand_dropped_schemas(log, {"d.a"}).equals(log)
    assert expand_dropped_schemas(CAPTURED.empty_table(), {"d.a"}).num_rows == 0
