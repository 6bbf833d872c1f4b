"""The format ``debezium`` beside Debezium itself: the same changes of one table, as records with and without schemas.

What may differ is named here, and stated in docs/outputs.md; anything else fails.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblake.serve.consume.model import Event
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs.formats.debezium import DebeziumFormat
from tests.support.debezium import DebeziumProgram
from tests.support.example_shop import ExampleShop
from tests.support.postgres import Database

Json = Any
_PROGRAM = Path(__file__).with_name("DebeziumRecords.scala")

#: A column per type, with a value; the required columns are those that are not NULL in the second row.
_COLUMNS = {
    "number": ("integer NOT NULL", "7"),
    "region": ("text NOT NULL", "'Île'"),
    "small": ("smallint NOT NULL", "-32768"),
    "big": ("bigint", "9223372036854775807"),
    "name": ("varchar(20) NOT NULL", "'a \"b\" \\'"),
    "code": ("char(3)", "'x'"),
    "qty": ("integer NOT NULL DEFAULT 5", "9"),
    "state": ("text DEFAULT 'new'", "'paid'"),
    "amount": ("numeric(10,2) NOT NULL", "-1234.50"),
    "rate": ("numeric NOT NULL", "0.00012300"),
    "exact": ("numeric", "(repeat('7', 5000) || '.5')::numeric"),
    "paid": ("boolean NOT NULL", "true"),
    "weight": ("real", "0.1"),
    "ratio": ("double precision NOT NULL", "1e-7"),
    "score": ("double precision", "'NaN'"),
    "day": ("date NOT NULL", "'1969-12-31'"),
    "placed": ("timestamp NOT NULL", "'2026-11-24 22:48:21.123456'"),
    "placed_ms": ("timestamp(3)", "'2026-11-24 22:48:21.125'"),
    "sent": ("timestamptz NOT NULL", "'2026-11-24 22:48:21.5+02'"),
    "seen": ("timestamptz(2)", "'2026-11-24 22:48:21.129+00'"),
    "left_at": ("timestamptz(0)", "'2026-11-24 22:48:21.9+00'"),
    "opens": ("time", "'08:30:00.000001'"),
    "opens_ms": ("time(3)", "'08:30:00.125'"),
    "closes": ("timetz NOT NULL", "'18:00:00.25+02'"),
    "lasts": ("interval NOT NULL", "'1 year 2 mons -3 days 04:05:06.789'"),
    "id": ("uuid NOT NULL", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    "facts": ("jsonb NOT NULL", "to_jsonb(repeat('j', 3000))"),
    "raw": ("json", "'{\"a\":  1}'"),
    "image": ("bytea NOT NULL", "decode(repeat('ab', 3000), 'hex')"),
    "thumb": ("bytea", "decode(repeat('cd', 3000), 'hex')"),
    "note": ("text", "repeat('n', 3000)"),
    "flag": ("bit(1)", "B'1'"),
    "flags": ("bit(12) NOT NULL", "B'000100000010'"),
    "mask": ("bit varying(20)", "B'101010101'"),
    "masks": ("bit varying", "B'1'"),
    "lamp": ("bit varying(1)", "B'1'"),
    "price": ("money", "'-1234.5'"),
    "host": ("inet", "'192.0.2.1'"),
    "span": ("int4range", "'[1,5)'"),
    "row": ("oid", "4294967295"),
    "words": ("tsvector", "'a:1 b:2'"),
    "mood": ("mood", "'it''s'"),
    "tags": ("integer[]", "'{1,NULL}'"),
    "place": ("point", "'(1,-2.5)'"),
}
_KEY = {"region", "number"}
#: Columns whose values are too long for their row: an update that does not set one does not log it.
_LONG = ("exact", "facts", "image", "thumb", "note")
_WHOLE = ", ".join(value for _, value in _COLUMNS.values())
_SPARSE = ", ".join(value if "NOT NULL" in kind else "NULL" for kind, value in _COLUMNS.values())
_SETUP = (
    "CREATE TYPE mood AS ENUM ('happy', 'it''s')",
    f"CREATE TABLE orders ({', '.join(f'{name} {kind}' for name, (kind, _) in _COLUMNS.items())},"
    " PRIMARY KEY (region, number))",
    *(f"ALTER TABLE orders ALTER {name} SET STORAGE EXTERNAL" for name in _LONG),
)
_CHANGES = (
    f"INSERT INTO orders VALUES ({_WHOLE})",
    "UPDATE orders SET qty = 1",
    "UPDATE orders SET number = 8",
    "UPDATE orders SET note = NULL, thumb = '', exact = 1200, rate = -0.00, sent = '2026-11-24 00:00:00Z',"
    " seen = sent, masks = '', flags = B'000000000010', mask = B'0000000001', price = 1234567, ratio = 'Infinity'",
    "DELETE FROM orders",
    f"INSERT INTO orders VALUES ({_SPARSE})",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "UPDATE orders SET qty = 2",
    "UPDATE orders SET region = 'x'",
    "DELETE FROM orders",
    "TRUNCATE orders",
)

#: Fields of the payload that are facts of the one or the other.
_OWN_FACTS = {
    "version": "names the program", "sequence": "the lake's position", "lsn": "the end of the transaction in the lake",
}
_MOMENTS = ("ts_ms", "ts_us", "ts_ns")
"""When the record was made. Those of ``source``, when the transaction was committed, are equal."""
#: Columns that are strings here; Debezium leaves out the type of the last.
_STRINGS = ("mood", "tags", "place", "words")
#: What a column has where there is no value: the lake knows no defaults, and fallbacks of JSON are JSON.
_NO_VALUE = {"qty": (5, 0), "state": ("new", None), "facts": ("", "{}")}
#: Debezium's connector for PostgreSQL omits zero bytes at the end.
_BITS = ("flags", "mask", "masks")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_debezium_records_equal_those_of_engine(database: Database, tmp_path: Path) -> None:
    shop = ExampleShop(database, tmp_path, *_SETUP)
    database.rows("SELECT pg_create_logical_replication_slot('engine', 'pgoutput')")
    database.run(*_CHANGES)
    theirs = _engine_records(shop)
    shop.advance()
    ours = list(_our_records(shop))
    shop.close()
    assert [record["plain"]["value"] and record["plain"]["value"]["op"] for record in ours] == [
        "c", "u", "d", None, "c", "u", "d", None, "c", "u", "d", None, "c", "d", None, "t"
    ]
    for number, (own, engine) in enumerate(zip(ours, theirs, strict=True)):
        _name_absent(own)
        # A record's partition depends on the bytes of its key.
        assert json.dumps(own["plain"]["key"]) == json.dumps(engine["plain"]["key"]), number
        assert own["schemas"]["key"] == engine["schemas"]["key"], number
        assert own["topic"] == engine["topic"]
        for record in (own, engine):
            _reduce_payload(record["plain"]["value"])
            if (value := record["schemas"]["value"]) is not None:
                _reduce_payload(value["payload"])
                _reduce_schema(value["schema"])
        assert own["plain"]["value"] == engine["plain"]["value"], number
        assert own["schemas"]["value"] == engine["schemas"]["value"], number


def _name_absent(own: Json) -> None:
    """Give columns that were not sent what Debezium writes: its fallback, which records with schemas have, or null.

    They are a number, or in the ``before`` of the default REPLICA IDENTITY all columns but those of the key.
    """
    if own["plain"]["value"] is None:
        return
    plain, complete = own["plain"]["value"], own["schemas"]["value"]["payload"]
    for image in ("before", "after"):
        if plain[image] is not None:
            assert set(_COLUMNS) - set(plain[image]) in (set(), {"exact"}, set(_COLUMNS) - _KEY)
            complete[image] = dict.fromkeys(_COLUMNS) | complete[image]
            plain[image] = complete[image] | plain[image]


def _reduce_payload(payload: Json) -> None:
    """Remove what may differ."""
    if payload is None:
        return
    for name in _OWN_FACTS:
        del payload["source"][name]
    for name in _MOMENTS:
        del payload[name]
    for row in filter(None, (payload["before"], payload["after"])):
        for name in _STRINGS:
            row.pop(name, None)
        for name, values in _NO_VALUE.items():
            if row[name] in values:
                del row[name]
        for name in _BITS:
            if row[name]:
                row[name] = base64.b64decode(row[name]).rstrip(b"\0")


def _reduce_schema(schema: Json) -> None:
    """Remove what may differ: columns that are strings here, and defaults of columns."""
    for image in schema["fields"][:2]:
        image["fields"] = [column for column in image["fields"] if column["field"] not in _STRINGS]
        for column in image["fields"]:
            column.pop("default", None)


def _engine_records(shop: ExampleShop) -> list[Json]:
    server, settings = shop.database.server, shop.backend.settings
    assert settings is not None
    with DebeziumProgram.compiled(_PROGRAM) as program:
        lines = program.run({
            "name": "shop", "topic.prefix": "shop", "database.hostname": settings.host,
            "database.port": str(server.port), "database.user": server.user, "database.password": server.password,
            "database.dbname": shop.database.name, "publication.name": settings.publication, "slot.name": "engine",
            "table.include.list": "public.orders", "skipped.operations": "none",
        })
    return [json.loads(line) for line in lines]


def _our_records(shop: ExampleShop) -> Iterator[Json]:
    """Yield the records of all events, with the tombstones of the output ``kafka``."""
    with Subscription([shop.lake.paths], SubscriptionSettings(start="1/0", until_caught_up=True)) as subscription:
        events = [event for transaction in subscription for event in transaction.events]
    for event in events:
        yield _record(shop, event)
        if event.op == "d":
            yield _record(shop, event, is_tombstone=True)


def _record(shop: ExampleShop, event: Event, *, is_tombstone: bool = False) -> Json:
    record: dict[str, Json] = {"topic": f"{event.source}.{event.table}"}
    for name in ("plain", "schemas"):
        form = DebeziumFormat(schemas=name == "schemas", database=shop.database.name)
        key, value = form.encode_key(event), None if is_tombstone else form.encode(event)
        record[name] = {"key": json.loads(key or b"null"), "value": json.loads(value or b"null")}
    return record
