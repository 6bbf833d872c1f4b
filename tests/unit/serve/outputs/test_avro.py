"""The Avro format: values without loss, schemas that evolve, both ways to name a record's schema."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pytest

from dblake.base.core.errors import ConfigError, ConsumeError, OutputUnavailable
from dblake.base.core.schema import Column
from dblake.serve.outputs.formats.avro import AvroFormat, key_schema, legal_name, value_schema
from tests.support.streams import ID, Stream


def _read(data: bytes, header: int, schema: Any, reader: Any = None) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data[header:]), fastavro.parse_schema(schema), reader)


@pytest.mark.parametrize(
    ("source_type", "text", "value"),
    [
        ("bigint", "-9223372036854775808", -(1 << 63)),
        ("bigint unsigned", "18446744073709551615", Decimal((1 << 64) - 1)),
        ("numeric(10,2)", "-12.30", Decimal("-12.30")),
        ("numeric(10,2)", "NaN", "NaN"),
        ("numeric", "1.500", "1.500"),
        ("double precision", "-1.5", -1.5),
        ("boolean", "f", False),
        ("date", "1969-12-31", date(1969, 12, 31)),
        ("date", "infinity", "infinity"),
        ("date", "0000-00-00", "0000-00-00"),
        ("timestamp without time zone", "1900-01-02 03:04:05.678901", datetime(1900, 1, 2, 3, 4, 5, 678901)),
        ("timestamp with time zone", "2020-01-02 03:04:05+00", datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("datetime(3)", "2020-01-02 03:04:05.678", datetime(2020, 1, 2, 3, 4, 5, 678000)),
        ("timestamp", "2020-01-02 03:04:05", datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("bytea", "\\x00ff", b"\0\xff"),
        ("interval", "1 year -3 days", "1 year -3 days"),
        ("text", "", ""),
    ],
)
def test_values_survive_in_avro_types(source_type: str, text: str, value: object) -> None:
    stream = Stream(ID, Column("v", source_type))
    stream.insert(id="1", v=text)
    (event,) = stream.commit().events
    record = _read(AvroFormat().encode(event), 10, value_schema("shop", event.schema))
    assert record["after"] == {"id": 1, "v": value}


def test_unsent_columns_differ_from_null_by_name() -> None:
    stream = Stream(ID, Column("a", "text"), Column("b", "text"))
    stream.insert(id="1", a="x", b="y")
    stream.update(id="1", a=None)
    stream.delete("1")
    _, update, delete = stream.commit().events
    schema = value_schema("shop", update.schema)
    read = _read(AvroFormat().encode(update), 10, schema)
    assert (read["after"], read["unchanged"]) == ({"id": 1, "a": None, "b": None}, ["b"])
    read = _read(AvroFormat().encode(delete), 10, schema)
    assert (read["after"], read["before"]["id"], read["unchanged"]) == (None, 1, [])
    assert (read["op"], read["position"], read["last_in_transaction"]) == ("d", "1/100/4", True)


def test_readers_resolve_added_and_dropped_columns() -> None:
    stream = Stream(ID, Column("qty", "integer"), Column("old", "text"))
    stream.insert(id="1", qty="5", old="x")
    (before,) = stream.commit().events
    stream.change_schema(ID, Column("qty", "bigint"), Column("new", "date"))
    stream.insert(id="2", qty=str(1 << 40), new="2020-01-01")
    (after,) = stream.commit().events
    old, new = value_schema("shop", before.schema), value_schema("shop", after.schema)
    data = AvroFormat().encode(before)
    assert _read(data, 10, old, fastavro.parse_schema(new))["after"] == {"id": 1, "qty": 5, "new": None}


def test_names_are_sanitized_one_to_one() -> None:
    stream = Stream(Column("größe in cm", "integer", False, 1), Column("a-b", "text"), Column("a_2db", "text"),
                    table='public."Tab 1"')
    stream.insert(**{"größe in cm": "1", "a-b": "x", "a_2db": "y"})
    (event,) = stream.commit().events
    schema = value_schema("my-shop", event.schema)
    assert schema["namespace"] == "my_2dshop.public.Tab_201"
    encoded = AvroFormat().encode(event)
    assert _read(encoded, 10, value_schema("shop", event.schema))["after"] == {
        "gr_f6_dfe_20in_20cm": 1, "a_2db": "x", "a_2db_2": "y"
    }
    assert legal_name("2nd") == "_2nd"


def test_single_object_header_is_schema_fingerprint() -> None:
    """The specification's marker, and the fingerprint that other libraries compute: 8 bytes, the lowest first."""
    stream = Stream(ID)
    stream.insert(id="1")
    (event,) = stream.commit().events
    data = AvroFormat().encode_key(event)
    assert data is not None and data[:2] == b"\xc3\x01"
    parsed = fastavro.parse_schema(key_schema("shop", event.schema))
    canonical = fastavro.schema.to_parsing_canonical_form(parsed)
    assert int.from_bytes(data[2:10], "little") == _rabin(canonical.encode())
    assert _read(data, 10, key_schema("shop", event.schema)) == {"id": 1}


def _rabin(data: bytes) -> int:
    """Return CRC-64-AVRO as the specification's code computes it."""
    empty = 0xC15D213AA4D7A795
    table = []
    for number in range(256):
        entry = number
        for _ in range(8):
            entry = (entry >> 1) ^ (empty if entry & 1 else 0)
        table.append(entry)
    found = empty
    for byte in data:
        found = (found >> 8) ^ table[(found ^ byte) & 0xFF]
    return found


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return a registry's URL, and what it knows: subject → schemas; ``status`` is its answer."""
    known: dict[str, Any] = {"status": 200, "subjects": {}}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            versions = known["subjects"].setdefault(self.path.split("/")[2], [])
            schema = json.loads(body["schema"])
            if schema not in versions:
                versions.append(schema)
            known["authorization"] = self.headers.get("Authorization")
            answer = json.dumps({"id": 7 + versions.index(schema)}).encode()
            self.send_response(known["status"])
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", known
    server.shutdown()
    thread.join()
    server.server_close()


def test_registry_ids_precede_records(registry: tuple[str, dict[str, Any]]) -> None:
    url, known = registry
    stream = Stream(ID, Column("qty", "integer"))
    stream.insert(id="1", qty="5")
    (first,) = stream.commit().events
    stream.change_schema(ID, Column("qty", "bigint"))
    stream.insert(id="2", qty="6")
    (second,) = stream.commit().events
    avro = AvroFormat(registry=url + "/", user="u", password="p", tls="disable")
    data = [avro.encode(event) for event in (first, second, first)]
    assert [one[:5] for one in data] == [b"\0\0\0\0\x07", b"\0\0\0\0\x08", b"\0\0\0\0\x07"]
    assert _read(data[1], 5, known["subjects"]["shop.public.orders-value"][1])["after"] == {"id": 2, "qty": 6}
    key = avro.encode_key(first)
    assert key is not None and key[:5] == b"\0\0\0\0\x07"
    assert set(known["subjects"]) == {"shop.public.orders-value", "shop.public.orders-key"}
    assert known["authorization"] == "Basic dTpw"


@pytest.mark.parametrize(("status", "retryable"), [(409, False), (401, False), (503, True)])
def test_registry_errors_differ_in_exit_code(
    registry: tuple[str, dict[str, Any]], status: int, retryable: bool
) -> None:
    url, known = registry
    known["status"] = status
    stream = Stream(ID)
    stream.insert(id="1")
    with pytest.raises(ConsumeError, match="schema registry") as caught:
        AvroFormat(registry=url, tls="disable").encode(stream.commit().events[0])
    assert url.removeprefix("http://") in caught.value.what
    assert caught.value.retryable is retryable
    assert isinstance(caught.value, OutputUnavailable) is retryable


def test_registry_errors_name_cause_and_key() -> None:
    stream = Stream(ID)
    stream.insert(id="1")
    (event,) = stream.commit().events
    with pytest.raises(OutputUnavailable, match=r"schema registry at 127\.0\.0\.1:1: connection refused") as caught:
        AvroFormat(registry="http://127.0.0.1:1", tls="disable").encode(event)
    assert "reachable at format_settings.registry" in caught.value.next_step
    with pytest.raises(ConfigError, match=r"format_settings\.registry: http:// is plain text"):
        AvroFormat(registry="http://127.0.0.1:1")
