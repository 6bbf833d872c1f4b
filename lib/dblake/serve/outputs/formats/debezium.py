"""Debezium's change event: the envelope that existing Debezium consumers read.

Place: the format ``debezium``. Guarantee: fields, types and names equal what Debezium's connectors for PostgreSQL,
MySQL and MariaDB write through Kafka Connect's JsonConverter, with or without schemas. Differences exist because the
lake holds other facts than a connector does; docs/outputs.md states them. A column that was not sent is Debezium's
placeholder if it is text or bytes. Otherwise it is absent, or, with schemas and if it may not be NULL, Debezium's
fallback. ``transaction`` is null, and a fill is an update. Tombstones are left to the output ``kafka``; control entries
have no record.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-create-events
"""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from dblake.base.core.errors import EventRejected
from dblake.base.core.log_places import binlog_place
from dblake.base.core.names import split_qualified
from dblake.base.core.op import Op
from dblake.base.core.schema import TableSchema
from dblake.serve.consume.model import STATE, Control, Event, Image
from dblake.serve.outputs.formats.debezium_types import Json, connect_type, read_value

Connector = Literal["postgres", "mysql", "mariadb"]
VERSION = "dblake"
_CONNECTORS = {"postgres": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_.]")

_STRING, _LONG, _INT = "string", "int64", "int32"
_COMMON = (
    ("version", _STRING, False), ("connector", _STRING, False), ("name", _STRING, False), ("ts_ms", _LONG, False),
    ("snapshot", _STRING, True), ("db", _STRING, False), ("sequence", _STRING, True), ("ts_us", _LONG, True),
    ("ts_ns", _LONG, True),
)
#: The fields of ``source`` by connector: name, type, optional.
_SOURCE_FIELDS = {
    "postgres": (*_COMMON, ("schema", _STRING, False), ("table", _STRING, False), ("txId", _LONG, True),
                 ("lsn", _LONG, True), ("xmin", _LONG, True)),
    "mysql": (*_COMMON, ("table", _STRING, True), ("server_id", _LONG, False), ("gtid", _STRING, True),
              ("file", _STRING, False), ("pos", _LONG, False), ("row", _INT, False), ("thread", _LONG, True),
              ("query", _STRING, True)),
}
_SOURCE_FIELDS["mariadb"] = _SOURCE_FIELDS["mysql"]
_SNAPSHOT = {
    "type": _STRING, "optional": True, "name": "io.debezium.data.Enum", "version": 1, "parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental",
    }, "default": "false", "field": "snapshot",
}
_TRANSACTION = {
    "type": "struct", "optional": True, "name": "event.block", "version": 1, "field": "transaction",
    "fields": [
        {"type": _STRING, "optional": False, "field": "id"},
        {"type": _LONG, "optional": False, "field": "total_order"},
        {"type": _LONG, "optional": False, "field": "data_collection_order"},
    ],
}


class DebeziumFormat:
    """See ``protocol.Format``. ``schemas``: write each record with its schema, as ``schemas.enable: true`` does.

    ``connector`` is the kind of source, ``database`` PostgreSQL's database; ``prefix`` is Debezium's ``topic.prefix``,
    by default the source's name.
    """

    def __init__(
        self, *, schemas: bool = False, connector: Connector = "postgres", database: str = "",
        prefix: str | None = None,
    ) -> None:
        self._schemas, self._connector, self._database, self._prefix = schemas, connector, database, prefix

    def encode(self, event: Event) -> bytes:
        """Return the change event's value."""
        now = time.time_ns()
        before = event.key if event.before is None and event.op == Op.DELETE else event.before
        payload = {
            "before": self._complete_row(before, event),
            "after": self._complete_row(event.after, event, is_partial=event.op in (Op.UPDATE, Op.CREATE, Op.FILL)),
            "source": self._source(event),
            "transaction": None,
            "op": str(Op.UPDATE if event.op == Op.FILL else event.op),
            "ts_ms": now // 1_000_000, "ts_us": now // 1_000, "ts_ns": now,
        }
        if not self._schemas:
            return _dump(payload)
        return _with_schema(_envelope_schema(self._record_name(event), event.schema, self._connector), payload)

    def encode_key(self, event: Event) -> bytes | None:
        """Return the key as a struct of the key's columns, in the key's order."""
        row = _row(event.key, event)
        if row is None:
            return None
        payload = {name: row[name] for name in event.schema.primary_key if name in row}
        if not self._schemas:
            return _dump(payload)
        return _with_schema(_key_schema(self._record_name(event), event.schema), payload)

    def encode_control(self, control: Control) -> bytes | None:  # noqa: ARG002
        """Return None: Debezium's consumers know no control entries."""
        return None

    def _complete_row(self, image: Image | None, event: Event, *, is_partial: bool = False) -> dict[str, Json] | None:
        row = _row(image, event, is_partial=is_partial)
        if row is not None and self._schemas:
            # A reader of the schema rejects a record without a field that is not optional.
            for column in event.schema.columns:
                if column.name not in row and not column.nullable:
                    row[column.name] = connect_type(column.type).fallback
        return row

    def _record_name(self, event: Event) -> str:
        schema, table = split_qualified(event.table)
        return ".".join(_ILLEGAL.sub("_", part) for part in (self._prefix or event.source, schema, table))

    def _source(self, event: Event) -> dict[str, Json]:
        schema, table = split_qualified(event.table)
        at = event.committed_at
        micros = 0 if at is None else _microseconds(at)
        position = event.position
        snapshot = {STATE: "true", "dump": "incremental"}.get(event.origin, "false")
        common: dict[str, Json] = {
            "version": VERSION, "connector": _CONNECTORS[self._connector], "name": self._prefix or event.source,
            "ts_ms": micros // 1000, "snapshot": snapshot,
            "db": self._database if self._connector == "postgres" else schema,
            # The position in full: what a consumer that compares versions needs.
            "sequence": json.dumps([str(position.incarnation), str(position.lsn), str(position.seq)]),
            "ts_us": micros, "ts_ns": micros * 1000,
        }
        txid = int(event.txid) if event.txid and event.txid.isdigit() else None
        if self._connector == "postgres":
            return common | {"schema": schema, "table": table, "txId": txid, "lsn": position.lsn, "xmin": None}
        file, offset = binlog_place(position.lsn)
        return common | {
            "table": table, "server_id": 0, "gtid": None, "file": f"binlog.{file:06d}", "pos": offset,
            "row": position.seq >> 1 & 0x7FFFF, "thread": None, "query": None,
        }


def _row(image: Image | None, event: Event, *, is_partial: bool = False) -> dict[str, Json] | None:
    """Return an image by column, in the schema's order. ``is_partial``: mark texts and bytes that were not sent."""
    if image is None:
        return None
    out: dict[str, Json] = {}
    for column in event.schema.columns:
        if column.name in image:
            text = image[column.name]
            try:
                out[column.name] = None if text is None else read_value(column.type, text)
            except ValueError:
                raise EventRejected(
                    f"table {event.table}, column {column.name}: Debezium's format cannot hold the value at "
                    f"{event.position}", table=event.table, position=event.position,
                    next_step="use the format native or avro, or exclude the column with the output's key columns",
                ) from None
        elif is_partial and (placeholder := connect_type(column.type).placeholder) is not None:
            out[column.name] = placeholder
    return out


@lru_cache(maxsize=1024)
def _envelope_schema(name: str, schema: TableSchema, connector: str) -> str:
    value = [_column_schema(column.type, column.name, optional=column.nullable) for column in schema.columns]
    source_name = f"io.debezium.connector.{_CONNECTORS[connector]}.Source"
    fields = _SOURCE_FIELDS[connector]
    source = [
        _SNAPSHOT if field == "snapshot" else {"type": kind, "optional": optional, "field": field}
        for field, kind, optional in fields
    ]
    return json.dumps({
        "type": "struct", "optional": False, "name": f"{name}.Envelope", "version": 2,
        "fields": [
            {"type": "struct", "fields": value, "optional": True, "name": f"{name}.Value", "field": "before"},
            {"type": "struct", "fields": value, "optional": True, "name": f"{name}.Value", "field": "after"},
            {"type": "struct", "fields": source, "optional": False, "name": source_name, "version": 1,
             "field": "source"},
            _TRANSACTION,
            {"type": _STRING, "optional": False, "field": "op"},
            *({"type": _LONG, "optional": True, "field": unit} for unit in ("ts_ms", "ts_us", "ts_ns")),
        ],
    }, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=1024)
def _key_schema(name: str, schema: TableSchema) -> str:
    types = {c.name: c.type for c in schema.columns}
    return json.dumps({
        "type": "struct", "optional": False, "name": f"{name}.Key",
        "fields": [_column_schema(types[column], column, optional=False) for column in schema.primary_key],
    }, separators=(",", ":"), ensure_ascii=False)


def _column_schema(source_type: str, name: str, *, optional: bool) -> dict[str, Any]:
    return connect_type(source_type).schema(optional=optional, field_name=name)


def _with_schema(schema: str, payload: Json) -> bytes:
    return b'{"schema":' + schema.encode() + b',"payload":' + _dump(payload) + b"}"


def _dump(payload: Json) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def _microseconds(at: datetime) -> int:
    whole = at if at.tzinfo else at.replace(tzinfo=UTC)
    return int(whole.timestamp()) * 1_000_000 + whole.microsecond
