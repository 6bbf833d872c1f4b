"""Masked rows: they decode to what the original rows decode to, except for the masked column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dblake.base.core.errors import Unsupported
from dblake.base.core.mask_rules import Rule
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.mask.masks import Masking, Masks
from dblake.ingest.mask.rows import mask_chunk, mask_log
from dblake.ingest.source.memory.encode import (
    UNCHANGED,
    Value,
    copy_line,
    pgoutput_delete,
    pgoutput_insert,
    pgoutput_update,
)
from dblake.landing.columns import CAPTURED
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import DECODER_INPUT

T = TableSchema("public.t", (
    Column("a", "text"), Column("id", "integer", False, 1), Column("secret", "text"), Column("b", "bytea"),
))
KEYLESS = TableSchema("public.t", tuple(Column(c.name, c.type) for c in T.columns))
NO_UTF8 = b"\xff\xfe"
ODD = "tab\t newline\n backslash\\ \\N \\x41 🙂\r\v"


def masking(schema: TableSchema, rule: Rule) -> Masking:
    masking = Masks({"public.t": {"secret": rule}}, b"0123456789abcdef", text="text").masking_of(schema)
    assert masking is not None
    return masking


def log_rows(messages: list[bytes], schema: TableSchema) -> pa.Table:
    return pa.Table.from_pylist([
        {"incarnation": 1, "lsn": 10 + n // 3, "seq": n % 3 * 2, "kind": "row", "table": schema.table, "txid": 7,
         "schema_id": schema.schema_id, "committed_at": n, "last_in_txn": n % 3 == 2, "format": "pgoutput",
         "payload": message}
        for n, message in enumerate(messages)
    ], schema=CAPTURED)


def decoded(rows: pa.Table, schema: TableSchema) -> list[dict[str, Any]]:
    """Return landed rows as decoded, by position, without the schema's id."""
    filled = pa.table([rows[f.name] if f.name in rows.schema.names else pa.nulls(rows.num_rows, f.type)
                       for f in DECODER_INPUT], schema=DECODER_INPUT).combine_chunks()
    changes = [row for batch in filled.to_batches() for row in decode(batch, {schema.schema_id: schema}).to_pylist()]
    for row in changes:
        del row["schema_id"]
        for image in ("key", "before", "after"):
            row[image] = None if row[image] is None else dict(row[image])
    return sorted(changes, key=lambda row: (row["lsn"] or 0, row["seq"]))


def row(key: str, secret: Value, a: Value = "a", b: Value = "\\x00") -> list[Value]:
    return [a, key, secret, b]


KEY_1: list[Value] = [None, "1", None, None]
MESSAGES = [
    pgoutput_insert(5, row("1", "s")),
    pgoutput_insert(5, row("2", None, a=None)),
    pgoutput_insert(5, row("3", "s", a=ODD, b=NO_UTF8)),
    pgoutput_update(5, row("1", UNCHANGED, a=UNCHANGED)),
    pgoutput_update(5, row("9", "t"), KEY_1),
    pgoutput_update(5, row("1", UNCHANGED, a="new"), row("1", "old", a=NO_UTF8), "O"),
    pgoutput_update(5, row("8", "t", a=""), row("1", "old", a=None), "O"),
    pgoutput_delete(5, KEY_1),
    pgoutput_delete(5, row("1", "s", a=ODD), "O"),
]


@pytest.mark.parametrize("schema", [T, KEYLESS], ids=["key", "no key"])
def test_masked_log_decodes_to_masked_values(schema: TableSchema) -> None:
    messages = MESSAGES if schema is T else [m for m in MESSAGES if b"K" not in m[5:6]]
    original = log_rows(messages, schema)
    plan = masking(schema, Rule("truncate", 1))
    expected = decoded(original, schema)
    for change in expected:
        for image in (change["before"], change["after"]):
            if image and image.get("secret"):
                image["secret"] = image["secret"][0]
    assert decoded(mask_log(original, schema, plan), plan.schema) == expected

    without = masking(schema, Rule("drop"))
    for change in expected:
        for image in (change["before"], change["after"]):
            if image:
                image.pop("secret", None)
        if change["after"]:
            change["partial"] = "a" not in change["after"]
    assert decoded(mask_log(original, schema, without), without.schema) == expected


def test_masked_chunk_decodes_to_masked_values() -> None:
    lines = [copy_line(row(str(n), secret, a=a, b=b)) for n, (secret, a, b) in enumerate([
        ("secret", "a", "b"), (None, None, None), (ODD, ODD, NO_UTF8), ("", "", ""), ("\\N", "\\N", "\\."),
    ])]
    plan = masking(T, Rule("truncate", 4))
    landed = mask_chunk(pa.array(lines, pa.binary()), "copy", T, plan)
    changes = decoded(pa.table({"kind": ["chunk"] * 5, "seq": [0, 2, 4, 6, 8], "schema_id": [plan.schema.schema_id] * 5,
                          "format": ["copy"] * 5, "payload": landed}), plan.schema)
    assert [(change["after"], change["undecoded"]) for change in changes] == [
        ({"a": "a", "id": "0", "secret": "secr", "b": "b"}, None),
        ({"a": None, "id": "1", "secret": None, "b": None}, None),
        ({"a": ODD, "id": "2", "secret": "tab\t", "b": "\\xfffe"}, ["b"]),
        ({"a": "", "id": "3", "secret": "", "b": ""}, None),
        ({"a": "\\N", "id": "4", "secret": "\\N", "b": "\\."}, None),
    ]


def test_undecodable_row_is_rejected_without_its_value() -> None:
    rows = log_rows([b"I secret"], T)
    with pytest.raises(Unsupported, match=r"table public\.t: .* its table is masked") as failure:
        mask_log(rows, T, masking(T, Rule("hash")))
    assert "secret" not in str(failure.value)
