"""Avro records, one schema per version of a table's schema.

Place: the format ``avro``. Guarantee: no value is lost. A column is null or has its Avro type; a value that the type
cannot hold (``infinity``, a zero date, NaN in ``numeric``) is the source's text. ``unchanged`` names the columns that
were not sent. Every column is optional with the default null, so a reader with a schema of before or after an added or
dropped column resolves both. With a registry, records have Confluent's wire format: a zero byte, the schema's id in
four bytes, the body; subjects are the record's name with ``-value`` or ``-key`` behind it. Without one, they have
Avro's single-object encoding: C3 01, the schema's CRC-64-AVRO fingerprint, the body. ``value_schema`` returns the
schema of a table for readers.
https://avro.apache.org/docs/1.12.0/specification/#single-object-encoding
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import fastavro
import fastavro.schema
import urllib3

from dblake.base.core.errors import ConsumeError, OutputUnavailable
from dblake.base.core.names import split_qualified
from dblake.base.core.schema import TableSchema
from dblake.base.core.tls import Tls
from dblake.serve.consume.model import Control, Event, Image
from dblake.serve.consume.values import Value, read_image
from dblake.serve.outputs.web import WebService

_REGISTRY_SECONDS = 15.0
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DECIMAL = re.compile(r"(?:numeric|decimal)\((\d+),(\d+)\)")
_INTEGERS = frozenset((
    "tinyint", "tinyint unsigned", "smallint", "smallint unsigned", "mediumint", "mediumint unsigned", "year",
))


@dataclass(frozen=True, slots=True)
class _Writer:
    """A parsed schema, and what precedes each record of it."""

    schema: Any
    header: bytes


class AvroFormat:
    """See ``protocol.Format``. ``registry`` is a schema registry's URL; the other settings are for it.

    ``tls`` and ``tls_ca`` mean the same as in an output ``http``, but the path of the CAs is absolute.
    """

    def __init__(
        self, *, registry: str | None = None, user: str | None = None, password: str | None = None, tls: Tls = "verify",
        tls_ca: str | None = None,
    ) -> None:
        self._registry = registry.rstrip("/") if registry else None
        self._service = WebService(
            "the schema registry", "format_settings.registry", registry, tls, tls_ca, _REGISTRY_SECONDS
        ) if registry else None
        self._headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        if user is not None:
            self._headers |= urllib3.make_headers(basic_auth=f"{user}:{password or ''}")
        self._writers: dict[tuple[str, str, bool], _Writer] = {}

    def encode(self, event: Event) -> bytes:
        """Return the event: its images, and the fields of the native format."""
        writer = self._writer(event, is_key=False)
        sent = event.after or {}
        return _write(writer, {
            "source": event.source, "table": event.table, "op": event.op, "position": str(event.position),
            "before": _branch(writer, _row(event.before, event)), "after": _branch(writer, _row(event.after, event)),
            "unchanged": [] if event.after is None else [n for n in event.schema.names if n not in sent],
            "txid": event.txid, "committed_at": event.committed_at,
            "last_in_transaction": event.last_in_transaction, "origin": event.origin, "schema_id": event.schema_id,
        })

    def encode_key(self, event: Event) -> bytes | None:
        """Return the key as a record of its columns."""
        if event.key is None:
            return None
        return _write(self._writer(event, is_key=True), _row(event.key, event) or {})

    def encode_control(self, control: Control) -> bytes | None:  # noqa: ARG002
        """Return None: control entries have no Avro schema. Their JSON is in the native format."""
        return None

    def _writer(self, event: Event, *, is_key: bool) -> _Writer:
        known = self._writers.get((event.source, event.schema_id, is_key))
        if known is None:
            raw = (key_schema if is_key else value_schema)(event.source, event.schema)
            parsed = fastavro.parse_schema(raw)
            header = self._register(self._service, raw, is_key) if self._service else _fingerprint(raw)
            known = self._writers[event.source, event.schema_id, is_key] = _Writer(parsed, header)
        return known

    def _register(self, service: WebService, schema: dict[str, Any], is_key: bool) -> bytes:
        """Register a schema; return the wire format's header. Registering an equal one again returns the same id."""
        subject = f"{schema['namespace']}-{'key' if is_key else 'value'}"
        body = json.dumps({"schemaType": "AVRO", "schema": json.dumps(schema)}).encode()
        response = service.post(f"{self._registry}/subjects/{subject}/versions", body, self._headers)
        if response.status == 409:
            raise ConsumeError(
                f"{service.where} rejects the new schema of {subject}: it is not compatible with the one before",
                next_step="set the subject's compatibility to NONE, or delete the subject, once its readers are ready",
            )
        if response.status >= 500 or response.status == 429:
            raise OutputUnavailable(
                f"{service.where}: status {response.status}", next_step="see its log, then run again"
            )
        if response.status != 200:
            raise ConsumeError(
                f"{service.where}: status {response.status} for the schema of {subject}",
                next_step="correct format_settings.registry, user or password, or the user's permissions there",
            )
        return struct.pack(">bI", 0, json.loads(response.data)["id"])


@lru_cache(maxsize=4096)
def value_schema(source: str, schema: TableSchema) -> dict[str, Any]:
    """Return the Avro schema of a table's events, as the schema's JSON object."""
    namespace = _namespace(source, schema)
    names = _field_names(schema)
    columns = [_field(names[column.name], column.name, column.type) for column in schema.columns]
    row = {"type": "record", "name": "Row", "namespace": namespace, "fields": columns}
    time = {"type": "long", "logicalType": "timestamp-micros"}
    return {
        "type": "record", "name": "Event", "namespace": namespace, "dblake.schema_id": schema.schema_id,
        "fields": [
            *({"name": name, "type": "string"} for name in ("source", "table", "op", "position")),
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", f"{namespace}.Row"], "default": None},
            {"name": "unchanged", "type": {"type": "array", "items": "string"}, "default": []},
            {"name": "txid", "type": ["null", "string"], "default": None},
            {"name": "committed_at", "type": ["null", time], "default": None},
            {"name": "last_in_transaction", "type": "boolean"},
            {"name": "origin", "type": "string"},
            {"name": "schema_id", "type": "string"},
        ],
    }


@lru_cache(maxsize=4096)
def key_schema(source: str, schema: TableSchema) -> dict[str, Any]:
    """Return the Avro schema of a table's keys."""
    names = _field_names(schema)
    keys = {column.name: column for column in schema.columns if column.key}
    return {
        "type": "record", "name": "Key", "namespace": _namespace(source, schema),
        "fields": [_field(names[name], name, keys[name].type) for name in schema.primary_key],
    }


def avro_type(source_type: str) -> str | dict[str, Any]:
    """Return the Avro type of a source type; ``string`` for one without a type of its own."""
    if source_type in _INTEGERS or source_type in ("integer", "int"):
        return "int"
    if source_type in ("bigint", "int unsigned"):
        return "long"
    if source_type == "bigint unsigned":
        return {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
    plain = {"real": "float", "float": "float", "double precision": "double", "double": "double", "boolean": "boolean"}
    if source_type in plain:
        return plain[source_type]
    if match := _DECIMAL.fullmatch(source_type):
        precision, scale = int(match[1]), int(match[2])
        if scale <= precision:
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if source_type == "date":
        return {"type": "int", "logicalType": "date"}
    if re.fullmatch(r"timestamp(\(\d\))? without time zone|datetime.*", source_type):
        return {"type": "long", "logicalType": "local-timestamp-micros"}
    if source_type.startswith("timestamp"):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if re.fullmatch(r"bytea|(?:var)?binary\(\d+\)|(?:tiny|medium|long)?blob", source_type):
        return "bytes"
    return "string"


def _field(name: str, column: str, source_type: str) -> dict[str, Any]:
    kind = avro_type(source_type)
    # Text holds what a type cannot.
    union = ["null", kind] if kind == "string" else ["null", kind, "string"]
    field: dict[str, Any] = {"name": name, "type": union, "default": None, "dblake.type": source_type}
    return field if name == column else {**field, "dblake.column": column}


def _row(image: Image | None, event: Event) -> dict[str, Any] | None:
    if image is None:
        return None
    names, types = _field_names(event.schema), {c.name: c.type for c in event.schema.columns}
    values = read_image(image, event.schema, event.undecoded)
    return {
        names[name]: _tagged(types[name], value, image[name]) for name, value in values.items() if name in names
    }


def _tagged(source_type: str, value: Value, text: str | None) -> Any:
    """Return a value with the branch of its union, so that none is chosen by trial."""
    if value is None:
        return None
    kind = avro_type(source_type)
    if kind == "string" or isinstance(value, str):
        return ("string", text)
    branch = kind if isinstance(kind, str) else kind["type"]
    logical = None if isinstance(kind, str) else kind["logicalType"]
    if logical is None:
        return (branch, value)
    made = _LOGICAL[logical](value)
    if made is None:
        return ("string", text)
    return (branch, made)


def _write(writer: _Writer, record: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    buffer.write(writer.header)
    fastavro.schemaless_writer(buffer, writer.schema, record)
    return buffer.getvalue()


def _branch(writer: _Writer, row: dict[str, Any] | None) -> Any:
    return None if row is None else (f"{writer.schema['name'].removesuffix('.Event')}.Row", row)


def _fingerprint(schema: dict[str, Any]) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    # The library writes the digits in the order of the bytes, the lowest first, as the encoding requires.
    return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def _namespace(source: str, schema: TableSchema) -> str:
    return ".".join(legal_name(part) for part in (source, *split_qualified(schema.table)))


def legal_name(name: str) -> str:
    """Return a name with ``_`` and the hexadecimal code for each character that Avro does not allow in names.

    >>> legal_name("größe in cm"), legal_name("2nd")
    ('gr_f6_dfe_20in_20cm', '_2nd')
    """
    legal = re.sub(r"[^A-Za-z0-9_]", lambda match: f"_{ord(match[0]):x}", name)
    return legal if re.match(r"[A-Za-z_]", legal) else f"_{legal}"


@lru_cache(maxsize=4096)
def _field_names(schema: TableSchema) -> dict[str, str]:
    """Return the field of each column; a number behind the name where two columns would have the same."""
    fields: dict[str, str] = {}
    for column in schema.names:
        name, number = legal_name(column), 1
        while name in fields.values():
            number += 1
            name = f"{legal_name(column)}_{number}"
        fields[column] = name
    return fields


def _to_days(value: Any) -> Any:
    return value if isinstance(value, date) else None


_LOGICAL: dict[str, Callable[[Any], Any]] = {
    "date": _to_days,
    "local-timestamp-micros": lambda value: (value - _EPOCH) // _MICROSECOND,
    "timestamp-micros": lambda value: (value - _EPOCH_UTC) // _MICROSECOND,
    "decimal": lambda value: Decimal(value) if isinstance(value, (Decimal, int)) else None,
}
