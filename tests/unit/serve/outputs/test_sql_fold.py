"""The fold of the SQL output: one change per key, as if events were applied one by one. And the type mapping."""

from __future__ import annotations

import random

import pytest

from dblake.base.core.schema import Column
from dblake.serve.outputs.sql.fold import Stretches, TableChanges, fold_events
from dblake.serve.outputs.sql.types import mysql_type, postgres_type, widens
from tests.support.streams import ID, Row, Stream, random_stream
from tools.sql_types_reference import PAGE, replace_table


def _apply(rows: dict[str | None, Row], changes: TableChanges) -> None:
    """Apply folded changes to rows by key, as a target does."""
    if changes.truncated:
        rows.clear()
    before = {key: dict(row) for key, row in rows.items()}
    for (key,), change in changes.rows.items():
        if change.deleted:
            rows.pop(key, None)
        elif change.begins or key not in rows:
            taken = before.get(change.origin[0], {}) if change.origin else {}
            rows[key] = {**taken, **change.values}
        else:
            rows[key].update(change.values)


@pytest.mark.parametrize("moves_in_part", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_folds_of_any_stretch_leave_source_rows(seed: int, moves_in_part: bool) -> None:
    stream, chosen = random_stream(seed, 40, keys=8, moves_in_part=moves_in_part), random.Random(seed)
    events = [event for transaction in stream.transactions for event in transaction.events]
    rows: dict[str | None, Row] = {}
    while events:
        count = chosen.randint(1, 40)
        while count < len(events) and events[count].key_before:
            count += 1
        for changes in fold_events(events[:count]).values():
            _apply(rows, changes)
        events = events[count:]
    names = stream.schema.names
    assert {key: [row.get(name) for name in names] for key, row in rows.items()} == {
        key: [row.get(name) for name in names] for (key,), row in stream.rows.items()
    }


def test_rows_known_in_part_are_incomplete_until_whole() -> None:
    stream = Stream(ID, Column("a", "text"), Column("b", "text"))
    stream.insert(id="1", a="x", b="y")
    stream.commit()
    stream.update(id="1", a="z")
    (update,) = stream.commit().events
    stream.update(op="f", id="1", b="y")
    (fill,) = stream.commit().events
    stream.update(id="1", a="q", b="r")
    (whole,) = stream.commit().events

    def is_incomplete(*events: object) -> bool:
        (change,) = fold_events(events)["public.orders"].rows.values()  # type: ignore[arg-type]
        return change.incomplete

    assert is_incomplete(update)
    assert not is_incomplete(update, fill)
    assert not is_incomplete(update, whole)
    assert not is_incomplete(stream.transactions[0].events[0], update)


def test_stretch_ends_between_two_key_changes_of_a_row_in_two_transactions() -> None:
    stream = Stream(ID, Column("a", "text"), Column("b", "text"))
    stream.insert(id="1", a="x", b="y")
    stream.commit()
    stream.move(("1",), unsent=["b"], id="2")
    stream.move(("2",), unsent=["b"], id="3")
    stream.commit()
    stream.move(("3",), unsent=["b"], id="4")
    stream.update(id="4", a="z")
    stream.commit()
    stretches = Stretches(3)
    events = [event for transaction in stream.transactions for event in transaction.events]
    parts = [*filter(None, map(stretches.add, events)), stretches.end()]
    assert [[event.op for event in part] for part in parts] == [["c", "d", "c"], ["d", "c"], ["d", "c", "u"]]


@pytest.mark.parametrize(
    ("source", "postgres", "mysql"),
    [
        ("integer", "integer", "int"),
        ("bigint unsigned", "numeric(20,0)", "bigint unsigned"),
        ("numeric(10,2)", "numeric(10,2)", "decimal(10,2)"),
        ("numeric(70,2)", "numeric(70,2)", "longtext"),
        ("numeric", "numeric", "longtext"),
        ("timestamp(3) without time zone", "timestamp(3)", "datetime(3)"),
        ("timestamp without time zone", "timestamp", "datetime(6)"),
        ("timestamp(2)", "timestamptz(2)", "datetime(2)"),
        ("datetime", "timestamp(0)", "datetime"),
        ("time(3)", "interval(3)", "time(3)"),
        ("varchar(20) character set latin1", "varchar(20)", "varchar(20)"),
        ("character varying(4000)", "varchar(4000)", "longtext"),
        ("bit(70)", "bit(70)", "longtext"),
        ("bytea", "bytea", "longblob"),
        ("enum('a','b') character set utf8mb4", "text", "longtext"),
        ("integer[]", "integer[]", "longtext"),
        ("interval[]", "interval[]", "longtext"),
        ("interval(3)", "interval", "longtext"),
        ("daterange", "daterange", "longtext"),
        ('public."Odd enum"', "text", "longtext"),
    ],
)
def test_source_types_have_target_types(source: str, postgres: str, mysql: str) -> None:
    assert (postgres_type(source), mysql_type(source)) == (postgres, mysql)


def test_mysql_key_types_fit_an_index() -> None:
    assert [mysql_type(kind, 2) for kind in ("text", "bytea", "character varying(900)", "uuid", "bigint")] == [
        "varchar(384)", "varbinary(1536)", "varchar(384)", "char(36)", "bigint"
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("smallint", "bigint", True), ("bigint", "integer", False), ("integer", "int", True),
        ("numeric(10,2)", "numeric(12,2)", True), ("numeric(10,2)", "numeric(12,5)", False),
        ("numeric(10,2)", "numeric(13,5)", True), ("integer", "numeric(10,0)", True),
        ("integer", "numeric(9,0)", False),
        ("varchar(10)", "varchar(20)", True), ("varchar(20)", "varchar(10)", False), ("date", "text", True),
        ("real", "double precision", True), ("text", "integer", False), ("timestamp(3)", "timestamp(6)", True),
        ("bit(3)", "bit(5)", False),
    ],
)
def test_type_widens_where_every_value_fits(old: str, new: str, expected: bool) -> None:
    assert widens(old, new) is expected


def test_documented_types_match_mapping() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == replace_table(page)
