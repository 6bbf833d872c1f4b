"""Native JSON: exactly the documented lines."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dblake.base.core.position import Position
from dblake.serve.consume.model import Control, ControlKind, Event
from dblake.serve.outputs.native import NativeFormat
from tests.support.schemas import table_schema

ORDERS = table_schema(
    "public.orders", "id integer key", "qty bigint unsigned", "price numeric(10,2)", "rate double precision",
    "open boolean", "at timestamp with time zone", "data bytea", "note text",
)
AT = datetime(2026, 11, 22, 12, 0, 0, 123456, tzinfo=UTC)


def event(op: str, key: str | None, before: dict[str, str | None] | None, after: dict[str, str | None] | None) -> Event:
    return Event(
        "shop", "public.orders", op, Position(1, 4711, 2), None if key is None else {"id": key}, before, after, "815",
        AT, True, "log", "3f", ORDERS,
    )


def test_update_is_encoded_as_documented() -> None:
    line = NativeFormat().encode(event("u", "7", {"id": "7", "qty": "1"}, {"id": "7", "qty": "18446744073709551615"}))
    assert line.decode() == (
        '{"source": "shop", "table": "public.orders", "op": "u", "position": "1/4711/2", "key": {"id": 7}, '
        '"before": {"id": 7, "qty": 1}, "after": {"id": 7, "qty": 18446744073709551615}, "txid": "815", '
        '"committed_at": "2026-11-22T12:00:00.123456Z", "last_in_transaction": true, "origin": "log", '
        '"schema_id": "3f"}'
    )


@pytest.mark.parametrize(("column", "text", "value"), [
    ("price", "1.50", '"1.50"'), ("rate", "1.5", "1.5"), ("rate", "1e+20", "1e+20"), ("rate", "NaN", '"NaN"'),
    ("rate", "-Infinity", '"-Infinity"'), ("open", "t", "true"), ("open", "f", "false"), ("note", None, "null"),
    ("at", "2024-01-01 00:00:00+00", '"2024-01-01 00:00:00+00"'), ("data", "\\xff", '"\\\\xff"'),
    ("note", 'käse "x"\n', '"käse \\"x\\"\\n"'), ("gone", "7", '"7"'),
])
def test_value_is_encoded_by_type(column: str, text: str | None, value: str) -> None:
    line = NativeFormat().encode(event("c", None, None, {column: text})).decode()
    assert f'"key": null, "before": null, "after": {{"{column}": {value}}}, "txid"' in line


def test_key_is_encoded_alone() -> None:
    assert NativeFormat().encode_key(event("d", "7", {"id": "7"}, None)) == b'{"id": 7}'
    assert NativeFormat().encode_key(event("t", None, None, None)) is None


def test_control_is_encoded_as_documented() -> None:
    control = Control(ControlKind.SCHEMA, "shop", Position(1, 9), "public.orders", {"schema_id": "3f"})
    assert NativeFormat().encode_control(control).decode() == (
        '{"control": "schema", "source": "shop", "position": "1/9/0", "table": "public.orders", "schema_id": "3f"}'
    )


def test_values_are_typed_without_loss() -> None:
    row = event("c", "7", None, {
        "id": "7", "price": "1.50", "open": "t", "at": "2024-01-01 00:00:00+00", "data": "\\xff", "rate": "infinity",
    })
    values = row.values()
    assert values is not None
    assert (values["id"], str(values["price"]), values["open"], values["data"]) == (7, "1.50", True, b"\xff")
    assert values["at"] == datetime(2024, 1, 1, tzinfo=UTC)
    late = event("c", "7", None, {"at": "infinity", "price": "NaN", "note": "\\xe9"})
    late.undecoded = ["note"]
    assert late.values() == {"at": "infinity", "price": "NaN", "note": b"\xe9"}
    assert late.values("before") is None
