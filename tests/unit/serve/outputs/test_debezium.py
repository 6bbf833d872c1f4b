"""Debezium's envelope: the documented values, and payloads that fit their own schema as Kafka Connect reads them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from dblake.base.core.errors import EventRejected
from dblake.base.core.schema import Column
from dblake.serve.consume.model import Event
from dblake.serve.outputs.formats.debezium import DebeziumFormat
from tests.support.streams import ID, Stream

_FAR = "__debezium_unavailable_value"
_FAR_BYTES = base64.b64encode(_FAR.encode()).decode()
_KINDS: dict[str, Any] = {
    "int16": int, "int32": int, "int64": int, "float": (int, float), "double": (int, float), "boolean": bool,
    "string": str,
}
_BITS = {"int16": 15, "int32": 31, "int64": 63}


def _base64(number: int, size: int) -> str:
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def require_fit(schema: dict[str, Any], value: Any, path: str = "") -> None:
    """Check a value against its Connect schema, as JsonConverter does when it reads the record."""
    if value is None:
        assert schema["optional"], path
    elif schema["type"] == "struct":
        fields = {field["field"]: field for field in schema["fields"]}
        assert set(value) <= set(fields), path
        for name, field in fields.items():
            require_fit(field, value.get(name), f"{path}.{name}")
    elif schema["type"] == "bytes":
        base64.b64decode(value, validate=True)
    elif schema["type"] in ("float", "double") and value in ("NaN", "Infinity", "-Infinity"):
        pass
    else:
        assert isinstance(value, _KINDS[schema["type"]]), (path, value)
        if schema["type"] in _BITS:
            assert abs(value) <= 1 << _BITS[schema["type"]], path


def _event(source_type: str, text: str | None) -> Event:
    stream = Stream(ID, Column("v", source_type))
    stream.insert(id="1", v=text)
    return stream.commit().events[0]


@pytest.mark.parametrize(
    ("source_type", "text", "value", "name"),
    [
        ("smallint", "-5", -5, None),
        ("bigint", "9223372036854775807", (1 << 63) - 1, None),
        ("real", "1.5", 1.5, None),
        ("boolean", "t", True, None),
        # The documentation's own example of Decimal: 1.23 has the unscaled value 123.
        ("numeric(5,2)", "1.23", base64.b64encode(b"\x7b").decode(), "org.apache.kafka.connect.data.Decimal"),
        ("numeric(5,2)", "-1.28", base64.b64encode(b"\x80").decode(), "org.apache.kafka.connect.data.Decimal"),
        ("decimal(5,2)", "1.28", base64.b64encode(b"\x00\x80").decode(), "org.apache.kafka.connect.data.Decimal"),
        # Without zeros at the end; all digits of the longest number.
        ("numeric", "1.230", {"scale": 2, "value": base64.b64encode(b"\x7b").decode()},
         "io.debezium.data.VariableScaleDecimal"),
        ("numeric", "1200", {"scale": 0, "value": base64.b64encode(b"\x04\xb0").decode()},
         "io.debezium.data.VariableScaleDecimal"),
        ("numeric", f"{1 << 9000}.5", {"scale": 1, "value": _base64((1 << 9000) * 10 + 5, 1126)},
         "io.debezium.data.VariableScaleDecimal"),
        ("money", "-$1,234.50", _base64(-123450, 3), "org.apache.kafka.connect.data.Decimal"),
        ("bigint unsigned", "18446744073709551615", base64.b64encode(b"\0" + b"\xff" * 8).decode(),
         "org.apache.kafka.connect.data.Decimal"),
        ("date", "2018-06-20", 17702, "io.debezium.time.Date"),
        ("timestamp(3) without time zone", "2018-06-20 15:13:16.945", 1529507596945, "io.debezium.time.Timestamp"),
        ("timestamp without time zone", "2018-06-20 15:13:16.945104", 1529507596945104,
         "io.debezium.time.MicroTimestamp"),
        ("datetime", "2018-06-20 06:37:03", 1529476623000, "io.debezium.time.Timestamp"),
        ("datetime(6)", "2018-06-20 06:37:03.000001", 1529476623000001, "io.debezium.time.MicroTimestamp"),
        ("timestamp with time zone", "2018-06-20 15:13:16.945104+02", "2018-06-20T13:13:16.945104Z",
         "io.debezium.time.ZonedTimestamp"),
        ("timestamp with time zone", "2018-06-20 15:13:16+00", "2018-06-20T15:13:16.000000Z",
         "io.debezium.time.ZonedTimestamp"),
        ("timestamp(3)", "2018-06-20 06:37:03.1", "2018-06-20T06:37:03.100Z", "io.debezium.time.ZonedTimestamp"),
        ("timestamp", "2018-06-20 06:37:03", "2018-06-20T06:37:03Z", "io.debezium.time.ZonedTimestamp"),
        ("time without time zone", "12:34:56.789", 45296789000, "io.debezium.time.MicroTime"),
        ("time", "-838:59:59", -3020399000000, "io.debezium.time.MicroTime"),
        ("time with time zone", "12:34:56.789+02", "10:34:56.789Z", "io.debezium.time.ZonedTime"),
        ("interval", "1 day 02:00:00", 93600000000, "io.debezium.time.MicroDuration"),
        ("year", "2018", 2018, "io.debezium.time.Year"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
         "io.debezium.data.Uuid"),
        ("jsonb", '{"a": 1}', '{"a": 1}', "io.debezium.data.Json"),
        ("bytea", "\\x00ff", "AP8=", None),
        ("bit(1)", "1", True, None),
        ("bit(12)", "000100000010", base64.b64encode(b"\x02\x01").decode(), "io.debezium.data.Bits"),
        ("bit varying(20)", "101010101", base64.b64encode(b"\x55\x01").decode(), "io.debezium.data.Bits"),
        ("bit varying", "", "", "io.debezium.data.Bits"),
        ("enum('a','b''c') character set utf8mb4", "a", "a", "io.debezium.data.Enum"),
        ("integer[]", "{1,2}", "{1,2}", None),
    ],
)
def test_values_have_documented_types(source_type: str, text: str, value: object, name: str | None) -> None:
    event = _event(source_type, text)
    record = json.loads(DebeziumFormat(schemas=True, database="shop").encode(event))
    assert record["payload"]["after"]["v"] == value
    (field,) = [f for f in record["schema"]["fields"][1]["fields"] if f["field"] == "v"]
    assert field.get("name") == name
    require_fit(record["schema"], record["payload"])
    for null in (_event(source_type, None),):
        record = json.loads(DebeziumFormat(schemas=True).encode(null))
        require_fit(record["schema"], record["payload"])


def test_envelope_matches_published_schema() -> None:
    """The names, order and types of the envelope and of both connectors' ``source`` block."""
    event = _event("text", "x")
    schema = json.loads(DebeziumFormat(schemas=True, database="shop").encode(event))["schema"]
    assert (schema["name"], schema["version"]) == ("shop.public.orders.Envelope", 2)
    assert [f["field"] for f in schema["fields"]] == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"
    ]
    before, after, source, transaction = schema["fields"][:4]
    assert before["name"] == after["name"] == "shop.public.orders.Value" and before["optional"]
    assert (transaction["name"], source["name"]) == ("event.block", "io.debezium.connector.postgresql.Source")
    common = ["version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns"]
    assert [f["field"] for f in source["fields"]] == [*common, "schema", "table", "txId", "lsn", "xmin"]
    required = {f["field"] for f in source["fields"] if not f["optional"]}
    assert required == {"version", "connector", "name", "ts_ms", "db", "schema", "table"}
    mysql = json.loads(DebeziumFormat(schemas=True, connector="mysql").encode(event))
    require_fit(mysql["schema"], mysql["payload"])
    source = mysql["schema"]["fields"][2]
    assert source["name"] == "io.debezium.connector.mysql.Source"
    assert [f["field"] for f in source["fields"]] == [
        *common, "table", "server_id", "gtid", "file", "pos", "row", "thread", "query"
    ]
    assert mysql["payload"]["source"]["db"] == "public"


def test_operations_have_documented_payloads() -> None:
    stream = Stream(ID, Column("qty", "integer"), Column("note", "text"), Column("image", "bytea", nullable=False))
    stream.insert(op="r", origin="state", id="1", qty="1", note="a", image="\\x00")
    stream.insert(op="r", origin="dump", id="2", qty="1", note="a", image="\\x")
    stream.update(id="1", qty="2")
    stream.update(op="f", id="2", note="b")
    stream.delete("1")
    stream.truncate()
    events = stream.commit().events
    debezium = DebeziumFormat(database="shop")
    found = [json.loads(debezium.encode(event)) for event in events]
    assert [(f["op"], f["before"], f["after"], f["source"]["snapshot"]) for f in found] == [
        ("r", None, {"id": 1, "qty": 1, "note": "a", "image": "AA=="}, "true"),
        ("r", None, {"id": 2, "qty": 1, "note": "a", "image": ""}, "incremental"),
        ("u", None, {"id": 1, "qty": 2, "note": _FAR, "image": _FAR_BYTES}, "false"),
        # A number that was not sent is absent: null would be a value.
        ("u", None, {"id": 2, "note": "b", "image": _FAR_BYTES}, "false"),
        ("d", {"id": 1}, None, "false"),
        ("t", None, None, "false"),
    ]
    source = found[2]["source"]
    assert (source["db"], source["schema"], source["table"]) == ("shop", "public", "orders")
    assert (source["name"], source["txId"], source["lsn"], source["ts_ms"]) == ("shop", 100, 100, 1795348900000)
    assert found[0]["transaction"] is None and found[0]["ts_us"] // 1000 == found[0]["ts_ms"]


def test_keys_are_structs_of_key_columns() -> None:
    stream = Stream(Column("b", "text", False, 2), Column("a", "bigint", False, 1), Column("v", "text"))
    stream.insert(b="x", a="7", v="y")
    stream.truncate()
    event, truncate = stream.commit().events
    assert DebeziumFormat().encode_key(event) == b'{"a":7,"b":"x"}', "in the key's order"
    record = json.loads(DebeziumFormat(schemas=True, prefix="pre").encode_key(event) or b"")
    assert record["schema"]["name"] == "pre.public.orders.Key"
    assert [field["field"] for field in record["schema"]["fields"]] == ["a", "b"]
    require_fit(record["schema"], record["payload"])
    assert DebeziumFormat().encode_key(truncate) is None


@pytest.mark.parametrize(
    ("source_type", "text"),
    [("date", "infinity"), ("datetime", "0000-00-00 00:00:00"), ("numeric(5,2)", "NaN"), ("numeric", "NaN")],
)
def test_unholdable_values_are_rejected_by_name(source_type: str, text: str) -> None:
    with pytest.raises(EventRejected, match=r"public\.orders, column v") as caught:
        DebeziumFormat().encode(_event(source_type, text))
    assert text not in str(caught.value)


@pytest.mark.parametrize("source_type", ["integer", "numeric(5,2)", "numeric", "boolean", "uuid",
                                         "timestamp with time zone", "double precision", "bit(12)"])
def test_required_column_not_sent_has_fallback_with_schemas(source_type: str) -> None:
    stream = Stream(ID, Column("v", source_type, nullable=False), Column("note", "text"))
    stream.insert(id="1", v=None, note="a")
    stream.update(id="1", note="b")
    stream.delete("1")
    _, update, delete = stream.commit().events
    delete.before = None
    for event, image in ((update, "after"), (delete, "before")):
        record = json.loads(DebeziumFormat(schemas=True).encode(event))
        require_fit(record["schema"], record["payload"])
        assert "v" in record["payload"][image]
        assert "v" not in json.loads(DebeziumFormat().encode(event))[image]
