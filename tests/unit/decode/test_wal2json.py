"""Every rule of decoding wal2json's objects as a case: what the server sent, what must come out, what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from dblake.core.errors import ReconcileError
from dblake.core.schema import Column, TableSchema
from dblake.decode.batch import decode
from tests.unit.decode.landing_rows import batch_of, events_of, log_row

ITEM = TableSchema("public.item", (
    Column("id", "integer", False, 1), Column("n", "numeric(10,2)", False), Column("note", "text"),
    Column("raw", "bytea"), Column("on", "boolean"),
))
LOOSE = TableSchema("public.loose", (Column('a"b', "text"), Column("value", "text")))
HEAD = '"xid":725,"timestamp":"2026-11-22 02:32:47.57+00","lsn":"0/150CC88","schema":"public","table":"item"'
PK = '"pk":[{"name":"id","type":"integer"}]'

Image = dict[str, str | None] | None


def column(name: str, type_: str, value: str, optional: str = "true") -> str:
    return f'{{"name":"{name}","type":"{type_}","value":{value},"optional":{optional}}}'


def old(name: str, type_: str, value: str) -> str:
    return f'{{"name":"{name}","type":"{type_}","value":{value}}}'


ID, N = column("id", "integer", "1", "false"), column("n", "numeric(10,2)", "1.50", "false")
OLD_ID = old("id", "integer", "1")


def sent(action: str, columns: list[str] | None, identity: list[str] | None = None, tail: str = PK) -> bytes:
    parts = [f'"action":"{action}"', HEAD]
    parts += [f'"columns":[{",".join(columns)}]'] if columns is not None else []
    parts += [f'"identity":[{",".join(identity)}]'] if identity is not None else []
    return ("{" + ",".join([*parts, tail]) + "}").encode()


def note(value: str) -> bytes:
    return sent("I", [ID, N, column("note", "text", value)])


class Case(NamedTuple):
    name: str
    payload: bytes
    events: list[tuple[str, Image, Image, Image, bool]]
    """Operation, key, before, after, partial."""
    schema: TableSchema = ITEM


def whole(note: str | None) -> list[tuple[str, Image, Image, Image, bool]]:
    return [("c", {"id": "1"}, None, {"id": "1", "n": "1.50", "note": note}, True)]


CASES = [
    Case(
        "insert",
        sent("I", [ID, N, column("note", "text", '"a"'), column("raw", "bytea", '"00ff"'),
                   column("on", "boolean", "true")]),
        [("c", {"id": "1"}, None, {"id": "1", "n": "1.50", "note": "a", "raw": "\\x00ff", "on": "t"}, False)],
    ),
    Case(
        "nulls, an empty bytea, false",
        sent("I", [ID, N, column("note", "text", "null"), column("raw", "bytea", '""'),
                   column("on", "boolean", "false")]),
        [("c", {"id": "1"}, None, {"id": "1", "n": "1.50", "note": None, "raw": "\\x", "on": "f"}, False)],
    ),
    Case(
        "of domains, the text of the type below",
        sent("I", [ID, N, column("note", "text", '""'), column("raw", "public.dby", r'"\\x01"'),
                   column("on", "public.dbo", '"t"')]),
        [("c", {"id": "1"}, None, {"id": "1", "n": "1.50", "note": "", "raw": "\\x01", "on": "t"}, False)],
    ),
    Case(
        "numbers as strings are exact",
        sent("I", [ID, column("n", "numeric(10,2)", '"NaN"', "false")]),
        [("c", {"id": "1"}, None, {"id": "1", "n": "NaN"}, True)],
    ),
    Case(
        "a bare null where NULL may not be was not sent",
        sent("I", [ID, column("n", "numeric(10,2)", "null", "false"), column("note", "text", "null")]),
        [("c", {"id": "1"}, None, {"id": "1", "note": None}, True)],
    ),
    Case("an update that lacks a column", sent("U", [ID, N], [OLD_ID]),
         [("u", {"id": "1"}, {"id": "1"}, {"id": "1", "n": "1.50"}, True)]),
    Case("an update with all of the old row finds in it what it lacks",
         sent("U", [ID, N], [OLD_ID, old("n", "numeric(10,2)", "1.50"), old("note", "text", r'"a\tb"')]),
         [("u", {"id": "1"}, *[{"id": "1", "n": "1.50", "note": "a\tb"}] * 2, True)]),
    Case(
        "a key change is two events",
        sent("U", [column("id", "integer", "2", "false"), N], [OLD_ID]),
        [("d", {"id": "1"}, {"id": "1"}, None, False), ("c", {"id": "2"}, None, {"id": "2", "n": "1.50"}, True)],
    ),
    Case("delete", sent("D", None, [OLD_ID]), [("d", {"id": "1"}, {"id": "1"}, None, False)]),
    Case("no key; names that are keys of wal2json's, or need escapes",
         sent("I", [column(r"a\"b", "text", '"x"'), column("value", "text", '"y"')], tail='"pk":[]'),
         [("c", None, None, {'a"b': "x", "value": "y"}, False)], LOOSE),
    Case("no key, an update and its old row",
         sent("U", [column(r"a\"b", "text", "null"), column("value", "text", '"y"')],
              [old(r"a\"b", "text", '"x"'), old("value", "text", "null")], tail='"pk":[]'),
         [("u", None, {'a"b': "x", "value": None}, {'a"b': None, "value": "y"}, False)], LOOSE),
    Case("a type that is spelled as no JSON", note('"a"').replace(b'"type":"text"', b'"type":"My S".e'), whole("a")),
    *(
        Case(f"the string {value}", note(value), whole(text)) for value, text in [
            (r'"\b\f\n\r\t\"\\"', "\b\f\n\r\t\"\\"),
            (r'"\u0001\u001f\u007f"', "\x01\x1f\x7f"), (r'"\\u0041"', "\\u0041"),
            (r'"\\\\n"', "\\\\n"), (r'"\\\n"', "\\\n"), ('"optional"', "optional"), ('"value"', "value"),
            ('"name"', "name"), ('"{"', "{"), ('","', ","), (r'"\",\"value\":\"x"', '","value":"x'),
            (r'"},{\"name\":\"id\",\"type\":\"integer\",\"value\":2"', '},{"name":"id","type":"integer","value":2'),
            (r'"],\"pk\":[]}"', '],"pk":[]}'), (r'"\",\"identity\":[{"', '","identity":[{'), ('"é😀"', "é😀"),
            (r'"{\"schema\":\"x\"}"', '{"schema":"x"}'), ('"null"', "null"), ('"true"', "true"), ('"\x7f"', "\x7f"),
        ]
    ),
]


def decoded(payloads: list[bytes], schema: TableSchema) -> list[tuple[str, Image, Image, Image, bool]]:
    rows = [log_row(schema, payload, format="wal2json", seq=10 * n) for n, payload in enumerate(payloads)]
    return [
        (e["op"], *(None if e[image] is None else dict(e[image]) for image in ("key", "before", "after")), e["partial"])
        for e in events_of(decode(batch_of(*rows), {schema.schema_id: schema}))
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wal2json_object_decoded_alone(case: Case) -> None:
    assert decoded([case.payload], case.schema) == case.events


@pytest.mark.parametrize("schema", [ITEM, LOOSE], ids=lambda schema: schema.table)
def test_wal2json_object_decoded_among_others(schema: TableSchema) -> None:
    """Whatever precedes and follows it in the buffer, each object decodes to the same."""
    cases = [case for case in CASES if case.schema is schema]
    order = [*cases, *reversed(cases), *cases[::2]]
    assert decoded([case.payload for case in order], schema) == [event for case in order for event in case.events]


def test_wal2json_undecodable_bytes_become_hex() -> None:
    [event] = events_of(decode(
        batch_of(log_row(ITEM, note('"é"').replace("é".encode(), b"\xff"), format="wal2json")),
        {ITEM.schema_id: ITEM},
    ))
    assert (dict(event["after"])["note"], event["undecoded"]) == ("\\xff", ["note"])


REFUSED: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "the object is cut short"),
    ("a truncate", sent("T", None), "the object is no insert, update or delete"),
    ("another table's column", note('"a"').replace(b'"note"', b'"else"'), "a column is not in its schema"),
    ("a column twice", sent("I", [ID, N, N]), "a column was sent twice"),
    ("an escape of another writer's", note(r'"\/"'), "a string has an escape that PostgreSQL does not write"),
    ("a letter that need not be escaped", note(r'"\u00e9"'), "a string has an escape that PostgreSQL does not write"),
    ("an array", note("[1]"), "a value is neither text, number, boolean nor null"),
    ("a string that does not end", note('"a'), "a value is neither text, number, boolean nor null"),
    ("no value", note(""), "the object is not in wal2json's format 2"),
    ("no word of the key", sent("I", [ID, N], tail='"k":[]'), "the object is not in wal2json's format 2"),
    ("a key that is not sent", sent("I", [N]), "a value of the primary key was not sent"),
    ("a key that JSON cannot hold", sent("I", [column("id", "integer", "null", "false"), N]),
     "a value of the primary key was not sent"),
]


@pytest.mark.parametrize(("name", "payload", "why"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_malformed_row_rejected_by_name(name: str, payload: bytes, why: str) -> None:
    good: dict[str, Any] = log_row(ITEM, note('"a"'), format="wal2json", seq=2)
    with pytest.raises(ReconcileError) as refused:
        decode(batch_of(good, log_row(ITEM, payload, format="wal2json"), good), {ITEM.schema_id: ITEM})
    assert f"table public.item: {why}, in wal2json at position 1/4711/4 in landing batch 7" == refused.value.what
