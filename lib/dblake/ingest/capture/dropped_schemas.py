"""A dropped database empties all its tables: the log names the database only, capture knows its tables.

Place: between the log and the batch. Guarantee: each captured table of a dropped database gets a row of kind
``truncate`` at the statement's position, as for a DROP TABLE. Which tables exist afterwards is for ``lifecycle``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.names import split_qualified
from dblake.landing.columns import CAPTURED, DDL, TRUNCATE


def expand_dropped_schemas(rows: pa.Table, tables: Iterable[str]) -> pa.Table:
    """Return CAPTURED rows in which each dropped database is a ``truncate`` of those ``tables`` that are in it."""
    is_schema = pc.and_(pc.equal(rows["kind"], DDL), pc.is_null(rows["table"]))
    parts, begin = [], 0
    for index in pc.indices_nonzero(is_schema.combine_chunks()).to_pylist():
        (row,) = rows.slice(index, 1).to_pylist()
        schema = json.loads(row["payload"]).get("dropped_schema")
        dropped = sorted(table for table in tables if split_qualified(table)[0] == schema)
        truncates = [
            row | {"kind": TRUNCATE, "table": table, "seq": row["seq"] + 2 * n, "last_in_txn": False}
            for n, table in enumerate(dropped)
        ]
        if truncates:
            truncates[-1]["last_in_txn"] = row["last_in_txn"]
            parts += [rows.slice(begin, index - begin), pa.Table.from_pylist(truncates, schema=CAPTURED)]
            begin = index + 1
    return pa.concat_tables([*parts, rows.slice(begin)]) if parts else rows
