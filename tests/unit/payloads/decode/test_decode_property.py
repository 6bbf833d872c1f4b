"""Random schemas, messages and lines: the vectorised decoder equals the row-at-a-time model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblake.base.core.errors import ReconcileError
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.memory.encode import (
    UNCHANGED,
    copy_line,
    pgoutput_delete,
    pgoutput_insert,
    pgoutput_truncate,
    pgoutput_update,
)
from dblake.payloads.decode.batch import decode
from tests.model.decoder import Refused, decode_row
from tests.unit.payloads.decode.landing_rows import batch_of, chunk_row, events_of, log_row

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
PRESENT = st.one_of(
    st.sampled_from(["", "a", "A", "\\N", "\\", "\\\\", "\\n", "\t", "\n", "\\\t", "\r\b\f\v", "\\x00ff", "null", "ß€𝄞",
                     b"\xff", b"\xc3", b"\\\xed\xa0\x80", "N", "t" * 5]),
    st.text(max_size=12), st.binary(max_size=12),
    st.builds(lambda seed, times: seed * times, st.binary(min_size=1, max_size=3), st.integers(100, 3000)),
)
KEYS = st.sampled_from(["a", "A", "b", "", "\\", "\t", b"\xff", "\\xff", "ä"])


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(NAMES, max_size=8, unique=True))
    keys = draw(st.permutations(names))[: draw(st.integers(0, min(3, len(names))))]
    table = "public." + draw(st.sampled_from(["t", "u", '"ü"']))
    return TableSchema(
        table, tuple(Column(n, "text", n not in keys, keys.index(n) + 1 if n in keys else None) for n in names)
    )


@st.composite
def landing_rows(draw: st.DrawFn, schema: TableSchema) -> dict[str, Any]:
    def values(*, unchanged: bool = False) -> list[Any]:
        others = st.one_of(PRESENT, st.none(), st.just(UNCHANGED)) if unchanged else st.one_of(PRESENT, st.none())
        return [draw(KEYS if column.key else others) for column in schema.columns]

    def key_only() -> list[Any]:
        return [draw(KEYS) if column.key else None for column in schema.columns]

    def same_key(old: list[Any]) -> list[Any]:
        new = values(unchanged=True)
        if draw(st.booleans()):
            takes = st.sampled_from([0, 1]) if schema.primary_key else st.just(0)
            new = [
                (UNCHANGED if draw(takes) else o) if c.key else n
                for c, o, n in zip(schema.columns, old, new, strict=True)
            ]
        return new

    facts = {"seq": draw(st.integers(0, 50)) * 2, "last_in_txn": draw(st.booleans())}
    shape = draw(st.sampled_from(["I", "U", "UK", "UO", "DK", "DO", "T", "C", "C"]))
    if shape == "C":
        return chunk_row(schema, copy_line(values()), lsn=draw(st.none() | st.integers(0, 9)), seq=facts["seq"])
    if shape == "T":
        return log_row(schema, pgoutput_truncate([1]), kind="truncate", **facts)
    if shape == "I":
        return log_row(schema, pgoutput_insert(1, values()), **facts)
    if shape == "U":
        return log_row(schema, pgoutput_update(1, values(unchanged=True)), **facts)
    old = key_only() if shape.endswith("K") else values()
    letter = shape[1]
    if shape.startswith("D"):
        return log_row(schema, pgoutput_delete(1, old, letter), **facts)  # type: ignore[arg-type]
    return log_row(schema, pgoutput_update(1, same_key(old), old, letter), **facts)  # type: ignore[arg-type]


@st.composite
def landings(draw: st.DrawFn) -> tuple[dict[str, TableSchema], list[dict[str, Any]]]:
    tables = draw(st.lists(schemas(), min_size=1, max_size=3))
    rows = [draw(landing_rows(draw(st.sampled_from(tables)))) for _ in range(draw(st.integers(1, 12)))]
    for number, row in enumerate(rows):
        row["batch"] = number
    return {t.schema_id: t for t in tables}, rows


@pytest.mark.parametrize("examples", [75, pytest.param(300, marks=pytest.mark.slow)])
def test_decoder_equals_model_on_random_rows(examples: int) -> None:
    @given(landings(), st.integers(0, 3), st.integers(0, 3))
    @settings(max_examples=examples, deadline=None)
    def check(landing: tuple[dict[str, TableSchema], list[dict[str, Any]]], skipped: int, dropped: int) -> None:
        tables, rows = landing
        part = slice(skipped, max(len(rows) - dropped, skipped))
        expected = [event for row in rows[part] for event in decode_row(row, tables[row["schema_id"]])]
        assert events_of(decode(batch_of(*rows).slice(part.start, part.stop - part.start), tables)) == expected

    check()


@pytest.mark.parametrize("examples", [75, pytest.param(300, marks=pytest.mark.slow)])
def test_damaged_bytes_rejected_or_equal_to_model(examples: int) -> None:
    """One row is damaged; what the model still understands decodes to the same, all else is a ReconcileError."""

    @given(schemas(), st.data())
    @settings(max_examples=examples, deadline=None)
    def check(schema: TableSchema, data: st.DataObject) -> None:
        _decode_with_one_row_damaged(schema, data)

    check()


def _decode_with_one_row_damaged(schema: TableSchema, data: st.DataObject) -> None:
    rows = [data.draw(landing_rows(schema)) for _ in range(3)]
    damaged = bytearray(rows[1]["payload"])
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    rows[1]["payload"] = bytes(damaged)
    for number, row in enumerate(rows):
        row["batch"] = number
    try:
        expected = [event for row in rows for event in decode_row(row, schema)]
    except Refused:
        expected = None
    try:
        decoded = events_of(decode(batch_of(*rows), {schema.schema_id: schema}))
    except ReconcileError:
        assert expected is None
    else:
        assert decoded == expected
