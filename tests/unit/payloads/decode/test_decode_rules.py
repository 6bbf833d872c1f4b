"""Every rule of decoding as a case: what the source sent, what must come out."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from dblake.base.core.errors import ReconcileError
from dblake.base.core.schema import TableSchema
from dblake.ingest.source.memory.encode import (
    UNCHANGED,
    copy_line,
    pgoutput_delete,
    pgoutput_insert,
    pgoutput_truncate,
    pgoutput_update,
)
from dblake.payloads.decode.batch import decode
from tests.unit.payloads.decode.landing_rows import AT, batch_of, chunk_row, events_of, log_row, schema_of

ITEM = schema_of("public.item", "id name note", "id")
PAIR = schema_of("public.pair", "b x a", "a b")
LOOSE = schema_of("public.loose", "x y")
BARE = schema_of("public.bare", "")

Image = list[tuple[str, str | None]] | None


class Event(NamedTuple):
    seq: int
    op: str
    key: Image
    before: Image
    after: Image
    partial: bool = False
    undecoded: list[str] | None = None
    last: bool | None = True


class Case(NamedTuple):
    name: str
    row: dict[str, Any]
    schema: TableSchema
    events: list[Event]


CASES = [
    Case(
        "insert", log_row(ITEM, pgoutput_insert(1, ["1", "a", None])), ITEM,
        [Event(4, "c", [("id", "1")], None, [("id", "1"), ("name", "a"), ("note", None)])],
    ),
    Case(
        "an empty string is not NULL", log_row(ITEM, pgoutput_insert(1, ["1", "", None])), ITEM,
        [Event(4, "c", [("id", "1")], None, [("id", "1"), ("name", ""), ("note", None)])],
    ),
    Case(
        "the key in key order, the image in column order", log_row(PAIR, pgoutput_insert(1, ["2", "x", "1"])), PAIR,
        [Event(4, "c", [("a", "1"), ("b", "2")], None, [("b", "2"), ("x", "x"), ("a", "1")])],
    ),
    Case(
        "no primary key, no key", log_row(LOOSE, pgoutput_insert(1, ["1", "2"])), LOOSE,
        [Event(4, "c", None, None, [("x", "1"), ("y", "2")])],
    ),
    Case("no columns", log_row(BARE, pgoutput_insert(1, [])), BARE, [Event(4, "c", None, None, [])]),
    Case(
        "update", log_row(ITEM, pgoutput_update(1, ["1", "b", None])), ITEM,
        [Event(4, "u", [("id", "1")], None, [("id", "1"), ("name", "b"), ("note", None)])],
    ),
    Case(
        "update with the old row", log_row(ITEM, pgoutput_update(1, ["1", "b", "n"], ["1", "a", None], "O")), ITEM,
        [Event(4, "u", [("id", "1")], [("id", "1"), ("name", "a"), ("note", None)],
               [("id", "1"), ("name", "b"), ("note", "n")])],
    ),
    Case(
        "update with its unchanged key", log_row(ITEM, pgoutput_update(1, ["1", "b", "n"], ["1", None, None])), ITEM,
        [Event(4, "u", [("id", "1")], [("id", "1")], [("id", "1"), ("name", "b"), ("note", "n")])],
    ),
    Case(
        "key change: the others of the old row are absent, not NULL",
        log_row(ITEM, pgoutput_update(1, ["2", "b", None], ["1", None, None])), ITEM,
        [Event(4, "d", [("id", "1")], [("id", "1")], None, last=False),
         Event(5, "c", [("id", "2")], None, [("id", "2"), ("name", "b"), ("note", None)])],
    ),
    Case(
        "key change with the old row", log_row(ITEM, pgoutput_update(1, ["2", "b", "n"], ["1", None, "m"], "O")), ITEM,
        [Event(4, "d", [("id", "1")], [("id", "1"), ("name", None), ("note", "m")], None, last=False),
         Event(5, "c", [("id", "2")], None, [("id", "2"), ("name", "b"), ("note", "n")])],
    ),
    Case(
        "a key change within a transaction", log_row(ITEM, pgoutput_update(1, ["2", "b", "n"], ["1", None, None]),
                                                     last_in_txn=False), ITEM,
        [Event(4, "d", [("id", "1")], [("id", "1")], None, last=False),
         Event(5, "c", [("id", "2")], None, [("id", "2"), ("name", "b"), ("note", "n")], last=False)],
    ),
    Case(
        "letter case is a key change", log_row(ITEM, pgoutput_update(1, ["A", "b", "n"], ["a", None, None])), ITEM,
        [Event(4, "d", [("id", "a")], [("id", "a")], None, last=False),
         Event(5, "c", [("id", "A")], None, [("id", "A"), ("name", "b"), ("note", "n")])],
    ),
    Case(
        "the second key column changes", log_row(PAIR, pgoutput_update(1, ["3", "x", "1"], ["2", None, "1"])), PAIR,
        [Event(4, "d", [("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")], None, last=False),
         Event(5, "c", [("a", "1"), ("b", "3")], None, [("b", "3"), ("x", "x"), ("a", "1")])],
    ),
    Case(
        "without a primary key nothing is a key change",
        log_row(LOOSE, pgoutput_update(1, ["3", "x"], ["2", None], "O")), LOOSE,
        [Event(4, "u", None, [("x", "2"), ("y", None)], [("x", "3"), ("y", "x")])],
    ),
    Case(
        "unchanged TOAST is absent", log_row(ITEM, pgoutput_update(1, ["1", "b", UNCHANGED])), ITEM,
        [Event(4, "u", [("id", "1")], None, [("id", "1"), ("name", "b")], partial=True)],
    ),
    Case(
        "unchanged TOAST beside a key change",
        log_row(ITEM, pgoutput_update(1, ["2", UNCHANGED, "n"], ["1", None, None])), ITEM,
        [Event(4, "d", [("id", "1")], [("id", "1")], None, last=False),
         Event(5, "c", [("id", "2")], None, [("id", "2"), ("note", "n")], partial=True)],
    ),
    Case(
        "unchanged TOAST is taken from the old row",
        log_row(ITEM, pgoutput_update(1, ["1", UNCHANGED, "n"], ["1", "long", "m"], "O")), ITEM,
        [Event(4, "u", [("id", "1")], [("id", "1"), ("name", "long"), ("note", "m")],
               [("id", "1"), ("name", "long"), ("note", "n")])],
    ),
    Case(
        "an unchanged key is taken from the old key",
        log_row(ITEM, pgoutput_update(1, [UNCHANGED, "b", "n"], ["1", None, None])), ITEM,
        [Event(4, "u", [("id", "1")], [("id", "1")], [("id", "1"), ("name", "b"), ("note", "n")])],
    ),
    Case(
        "delete by key", log_row(ITEM, pgoutput_delete(1, ["1", None, None])), ITEM,
        [Event(4, "d", [("id", "1")], [("id", "1")], None)],
    ),
    Case(
        "delete with the whole row", log_row(ITEM, pgoutput_delete(1, ["1", "a", None], "O")), ITEM,
        [Event(4, "d", [("id", "1")], [("id", "1"), ("name", "a"), ("note", None)], None)],
    ),
    Case(
        "delete without a primary key", log_row(LOOSE, pgoutput_delete(1, ["1", None], "O")), LOOSE,
        [Event(4, "d", None, [("x", "1"), ("y", None)], None)],
    ),
    Case(
        "truncate", log_row(ITEM, pgoutput_truncate([1]), kind="truncate"), ITEM, [Event(4, "t", None, None, None)],
    ),
    Case(
        "bytes that are no text stand as hex", log_row(ITEM, pgoutput_insert(1, ["1", b"caf\xe9", "ö"])), ITEM,
        [Event(4, "c", [("id", "1")], None, [("id", "1"), ("name", "\\x636166e9"), ("note", "ö")],
               undecoded=["name"])],
    ),
    Case(
        "surrogates and overlong forms are no text",
        log_row(ITEM, pgoutput_insert(1, ["1", b"\xed\xa0\x80", b"\xc0\x80"])), ITEM,
        [Event(4, "c", [("id", "1")], None, [("id", "1"), ("name", "\\xeda080"), ("note", "\\xc080")],
               undecoded=["name", "note"])],
    ),
    Case(
        "an old value that is no text is named too",
        log_row(ITEM, pgoutput_update(1, ["1", "a", "n"], ["1", b"\xff", "n"], "O")), ITEM,
        [Event(4, "u", [("id", "1")], [("id", "1"), ("name", "\\xff"), ("note", "n")],
               [("id", "1"), ("name", "a"), ("note", "n")], undecoded=["name"])],
    ),
    Case(
        "a key that only looks like the old one's hex is another key",
        log_row(ITEM, pgoutput_update(1, ["\\xff", "a", "n"], [b"\xff", None, None])), ITEM,
        [Event(4, "d", [("id", "\\xff")], [("id", "\\xff")], None, undecoded=["id"], last=False),
         Event(5, "c", [("id", "\\xff")], None, [("id", "\\xff"), ("name", "a"), ("note", "n")])],
    ),
    Case(
        "a carried value that is no text", log_row(ITEM, pgoutput_update(1, ["1", UNCHANGED, ""], ["1", b"\xff", ""],
                                                                         "O")), ITEM,
        [Event(4, "u", [("id", "1")], [("id", "1"), ("name", "\\xff"), ("note", "")],
               [("id", "1"), ("name", "\\xff"), ("note", "")], undecoded=["name"])],
    ),
    Case(
        "chunk row", chunk_row(ITEM, b"1\ta\t\\N\n"), ITEM,
        [Event(4, "r", [("id", "1")], None, [("id", "1"), ("name", "a"), ("note", None)], last=None)],
    ),
    Case(
        "chunk row: key order", chunk_row(PAIR, b"2\tx\t1\n"), PAIR,
        [Event(4, "r", [("a", "1"), ("b", "2")], None, [("b", "2"), ("x", "x"), ("a", "1")], last=None)],
    ),
    Case(
        "chunk row: every escape", chunk_row(ITEM, rb"1	\b\f\n\r\t\v\\	\\\\n\\t" + b"\n"), ITEM,
        [Event(4, "r", [("id", "1")], None, [("id", "1"), ("name", "\b\f\n\r\t\v\\"), ("note", "\\\\n\\t")],
               last=None)],
    ),
    Case(
        "chunk row: the text \\N is not NULL", chunk_row(ITEM, rb"1	\\N	\N" + b"\n"), ITEM,
        [Event(4, "r", [("id", "1")], None, [("id", "1"), ("name", "\\N"), ("note", None)], last=None)],
    ),
    Case(
        "chunk row: binary", chunk_row(ITEM, rb"1	\\x00ff	" + b"\n"), ITEM,
        [Event(4, "r", [("id", "1")], None, [("id", "1"), ("name", "\\x00ff"), ("note", "")], last=None)],
    ),
    Case(
        "chunk row: bytes that are no text", chunk_row(ITEM, b"1\t\\\\\xff\ta\n"), ITEM,
        [Event(4, "r", [("id", "1")], None, [("id", "1"), ("name", "\\x5cff"), ("note", "a")],
               undecoded=["name"], last=None)],
    ),
    Case("chunk row: no columns", chunk_row(BARE, b"\n"), BARE, [Event(4, "r", None, None, [], last=None)]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_decode_rule(case: Case) -> None:
    events = events_of(decode(batch_of(case.row), {case.schema.schema_id: case.schema}))
    assert [
        Event(e["seq"], e["op"], e["key"], e["before"], e["after"], e["partial"], e["undecoded"], e["last_in_txn"])
        for e in events
    ] == case.events


def test_landing_columns_copied_to_events() -> None:
    row = log_row(ITEM, pgoutput_update(1, ["2", "b", "n"], ["1", None, None]), batch=12, incarnation=3, txid=2**40)
    for event in events_of(decode(batch_of(row), {ITEM.schema_id: ITEM})):
        assert {n: event[n] for n in ("batch", "incarnation", "lsn", "table", "schema_id", "txid", "committed_at",
                                      "chunk_id")} == {
            "batch": 12, "incarnation": 3, "lsn": 4711, "table": "public.item", "schema_id": ITEM.schema_id,
            "txid": 2**40, "committed_at": AT, "chunk_id": None,
        }


def test_chunk_row_keeps_number_and_null_lsn() -> None:
    rows = [chunk_row(ITEM, b"1\ta\tb\n", seq=0, lsn=17), chunk_row(ITEM, b"2\ta\tb\n", seq=2, lsn=None)]
    events = decode(batch_of(*rows), {ITEM.schema_id: ITEM}).to_pylist()
    assert [(e["chunk_id"], e["lsn"], e["seq"], e["last_in_txn"]) for e in events] == [
        ("d1-3", 17, 0, None), ("d1-3", None, 2, None)
    ]


INSERT = pgoutput_insert(1, ["1", "secret", None])
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("another kind", log_row(ITEM, b"", kind="high", format="json"), "no decoder for rows of kind high"),
    ("a format without a decoder", log_row(ITEM, b"", format="test_decoding"), "no decoder for rows of kind row"),
    ("chunk rows in the log's format", chunk_row(ITEM, INSERT, format="pgoutput"), "no decoder for rows of kind chunk"),
    ("no kind", log_row(ITEM, b"", kind=None), "no decoder for rows of kind None"),
    ("unknown schema", log_row(ITEM, INSERT, schema_id="feed"), "the schema feed is not known"),
    ("no schema", log_row(ITEM, INSERT, schema_id=None), "the schema None is not known"),
    ("no payload", log_row(ITEM, None), "the payload is missing"),
    ("empty payload", log_row(ITEM, b""), "cut short"),
    ("another message", log_row(ITEM, b"B" + INSERT[1:]), "no Insert, Update or Delete"),
    ("an insert of an old row", log_row(ITEM, INSERT.replace(b"N", b"O")), "no Insert, Update or Delete"),
    ("a delete of a new row", log_row(ITEM, b"D" + INSERT[1:]), "no Insert, Update or Delete"),
    ("too few columns", log_row(ITEM, pgoutput_insert(1, ["1", "secret"])),
     "the new row has 2 columns, its schema has 3"),
    ("too many columns", log_row(ITEM, pgoutput_insert(1, ["1", "secret", "", ""])),
     "the new row has 4 columns, its schema has 3"),
    ("too few old columns", log_row(ITEM, pgoutput_delete(1, ["1"])), "the old row has 1 columns, its schema has 3"),
    ("cut in a value", log_row(ITEM, pgoutput_insert(1, ["1", "2", "secret"])[:-1]), "past the end of the message"),
    ("cut in a length", log_row(ITEM, INSERT[:-9]), "past the end of the message"),
    ("cut before a value", log_row(ITEM, INSERT[:-1]), "past the end of the message"),
    ("bytes after the last value", log_row(ITEM, INSERT + b"n"), "does not end where its last value does"),
    ("a length of 4 GiB", log_row(ITEM, INSERT.replace(b"\0\0\0\6", b"\xff\xff\xff\xff")), "past the end"),
    ("a binary value", log_row(ITEM, INSERT.replace(b"t\0\0\0\6", b"b\0\0\0\6")), "value that is not text"),
    ("an update without a new row", log_row(ITEM, b"U" + pgoutput_delete(1, ["1", None, None])[1:]), "no new row"),
    ("an old row without its key", log_row(ITEM, pgoutput_delete(1, [None, "secret", None])),
     "a value of the primary key was not sent"),
    ("a new row without its key", log_row(ITEM, pgoutput_update(1, [UNCHANGED, "secret", None])),
     "a value of the primary key was not sent"),
    ("a NULL key", log_row(ITEM, pgoutput_insert(1, [None, "secret", None])), "a value of the primary key was not"),
    ("an empty line", chunk_row(ITEM, b""), "the line is empty"),
    ("half a line", chunk_row(ITEM, b"1\tsecret\tb"), "does not end with a newline"),
    ("two lines", chunk_row(ITEM, b"1\tsecret\tb\n2\tc\td\n"), "more than one line"),
    ("too few values", chunk_row(ITEM, b"1\tsecret\n"), "the line has 2 values, its schema has 3"),
    ("too many values", chunk_row(ITEM, b"1\tsecret\ta\tb\n"), "the line has 4 values, its schema has 3"),
    ("values without columns", chunk_row(BARE, b"secret\n"), "the line has 1 values, its schema has 0"),
    ("an escape of no meaning", chunk_row(ITEM, rb"1	\101secret	a" + b"\n"), "an escape that COPY does not write"),
    ("\\N within a value", chunk_row(ITEM, rb"1	\Nsecret	a" + b"\n"), "an escape that COPY does not write"),
    ("a backslash at the end", chunk_row(ITEM, b"1\tsecret\\\ta\n"), "an escape that COPY does not write"),
    ("a NULL key in a chunk", chunk_row(ITEM, rb"\N	secret	a" + b"\n"), "a value of the primary key is NULL"),
]


@pytest.mark.parametrize(("name", "row", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_malformed_row_rejected_by_name(name: str, row: dict[str, Any], message: str) -> None:
    """Between good rows, so that neighbours neither hide the fault nor are blamed for it."""
    good = chunk_row(ITEM, b"8\ta\tb\n", seq=98) if row["kind"] == "chunk" else log_row(ITEM, INSERT, lsn=98)
    schemas = {s.schema_id: s for s in (ITEM, BARE)}
    with pytest.raises(ReconcileError) as caught:
        decode(batch_of(good, row, good), schemas)
    place = "row 4 of chunk d1-3 in landing batch 7" if row["kind"] == "chunk" else "position 1/4711/4 in landing batch"
    assert message in caught.value.what
    assert f"table {row['table']}: " in caught.value.what
    assert place in caught.value.what
    assert caught.value.next_step
    assert "secret" not in str(caught.value)


def test_copy_lines_one_value_short_and_one_over_rejected() -> None:
    rows = [chunk_row(ITEM, b"1\ta\n", seq=10), chunk_row(ITEM, b"2\ta\tb\tc\n", seq=12)]
    with pytest.raises(ReconcileError, match="row 10 of chunk"):
        decode(batch_of(*rows), {ITEM.schema_id: ITEM})


def test_value_length_into_next_row_rejected() -> None:
    stolen = INSERT.replace(b"\0\0\0\6", b"\0\0\0\x20")
    with pytest.raises(ReconcileError, match="past the end of the message"):
        decode(batch_of(log_row(ITEM, stolen), log_row(ITEM, INSERT), log_row(ITEM, INSERT)), {ITEM.schema_id: ITEM})


def test_copy_line_equals_servers_format() -> None:
    assert copy_line(["1", "\b\f\n\r\t\v\\", None, "", "\\N", b"\xff"]) == (
        rb"1	\b\f\n\r\t\v\\	\N		\\N	" + b"\xff\n"
    )
