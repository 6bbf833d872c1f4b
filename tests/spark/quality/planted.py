"""Defects to be planted in a warehouse, each with what a check must find of it: a table to be read from above.

A table is read, its rows changed in Python and written back in one commit, which keeps how far the table says it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from dblake.lake.layout import Paths

Row = dict[str, Any]
Found = tuple[str, str, str]
"""Suite, expectation (its name without what all begin with) and column."""

NULL, IN_SET, UNIQUE = "values_to_not_be_null", "values_to_be_in_set", "values_to_be_unique"
UNIQUE_TOGETHER, EQUAL, BETWEEN = "columns_to_be_unique", "pair_values_to_be_equal", "values_to_be_between"


@dataclass(frozen=True)
class Rows:
    """A table's rows, to be spoilt."""

    rows: list[Row]

    def one(self, **where: Any) -> Row:
        """The first of those that are like this, by their place."""
        return next(row for row in self.rows if all(row[name] == value for name, value in where.items()))

    def set(self, values: Row, **where: Any) -> None:
        self.one(**where).update(values)

    def copy(self, values: Row, **where: Any) -> None:
        self.rows.append({**self.one(**where), **values})

    def drop(self, **where: Any) -> None:
        self.rows.remove(self.one(**where))


Spoil = Callable[[Rows], None]


@dataclass(frozen=True)
class Defect:
    """What is wrong, in which table of ``Paths``, how it comes about, and what of it is found, how often."""

    what: str
    table: str
    spoil: Spoil
    found: dict[Found, int]


def event(key: dict[str, str], op: str = "c") -> Row:
    """The event of a key."""
    return {"op": op, "key": list(key.items())}


def line(number: int) -> Row:
    return event({"order_id": str(number), "place": "1"})


def without(row: Row, name: str) -> list[tuple[str, str | None]]:
    return [(column, value) for column, value in row["after"] if column != name]


def chunk(rows: Rows, number: int) -> Row:
    """A line of the ledger, by number."""
    return sorted((row for row in rows.rows if row["dump_id"] is not None), key=lambda row: row["high_lsn"])[number]


def lost_image_part(rows: Rows) -> None:
    row = rows.one(**event({"id": "13"}))
    row["after"] = without(row, "note")


def null_in_not_null(rows: Rows) -> None:
    row = rows.one(**event({"id": "14"}))
    row["after"] = [*without(row, "customer"), ("customer", None)]


def legitimate_nulls(rows: Rows) -> None:
    """Nothing is wrong with these."""
    rows.set({"customer": None, "_missing": ["customer"]}, id=20)
    rows.set({"customer": None, "_lossy": ["customer"]}, id=21)


def writing(rows: Rows, number: int) -> list[Row]:
    """The rows of the batch in which so-and-so many leases after the dump's wrote; what it is numbered is chance."""
    batch = next(row["batch"] for row in rows.rows if row["kind"] == "row" and row["lease_epoch"] == 3 + number)
    return [row for row in rows.rows if row["batch"] == batch]


def batch_lost(rows: Rows) -> None:
    for row in writing(rows, 0):
        rows.rows.remove(row)


def batch_twice(rows: Rows) -> None:
    row = writing(rows, 1)[0]
    rows.rows.append({**row, "landed_at": row["landed_at"] + timedelta(seconds=1)})


def lease_fell(rows: Rows) -> None:
    for row in writing(rows, 3):
        row["lease_epoch"] = 1


def mark(rows: list[Row], chunk_id: str | None) -> Row:
    return {**rows[-1], "kind": "low", "table": "public.orders", "chunk_id": chunk_id}


def newest(rows: Rows) -> list[Row]:
    last = max(row["batch"] for row in rows.rows if row["batch"])
    return [row for row in rows.rows if row["batch"] == last]


LANDING = [
    Defect("a batch is missing", "landing", batch_lost, {("landing", IN_SET, "missing_after"): 1}),
    Defect("a batch landed twice", "landing", batch_twice, {("landing", IN_SET, "commits"): 1}),
    Defect("a batch of two leases", "landing", lambda t: writing(t, 2)[0].update(lease_epoch=4),
           {("landing", IN_SET, "leases"): 1}),
    Defect("an older lease came later", "landing", lease_fell, {("landing", IN_SET, "lease_fell"): 1}),
    Defect("the log goes back", "landing", lambda t: writing(t, 4)[-1].update(lsn=5000),
           {("landing", IN_SET, "position_fell"): 1}),
    Defect("a kind nobody knows", "landing", lambda t: writing(t, 5)[-1].update(kind="?"),
           {("landing", IN_SET, "unknown_kind"): 1}),
    Defect("a row without a batch", "landing", lambda t: t.copy({"batch": None}, batch=1, kind="row"),
           {("landing", NULL, "batch"): 1}),
    Defect("a low watermark without a chunk", "landing", lambda t: t.rows.append(mark(newest(t), None)),
           {("watermarks", NULL, "chunk_id"): 1}),
    Defect("an orphan nobody told of", "landing", lambda t: t.rows.append(mark(writing(t, 6), "ghost")),
           {("watermarks", IN_SET, "untold"): 1}),
]
LEDGER = [
    Defect("a window without a line", "windows", lambda t: t.rows.remove(chunk(t, 1)),
           {("watermarks", IN_SET, "untold"): 2}),
    Defect("a window without a status", "windows", lambda t: chunk(t, 2).update(status=None),
           {("windows", NULL, "status"): 1}),
    Defect("a window neither closed nor discarded", "windows", lambda t: chunk(t, 3).update(status="open"),
           {("windows", IN_SET, "status"): 1}),
    Defect("a window discarded for no reason", "windows", lambda t: chunk(t, 4).update(status="discarded"),
           {("windows", IN_SET, "unexplained"): 1}),
    Defect("a window twice", "windows", lambda t: t.rows.append(dict(chunk(t, 5))),
           {("windows", UNIQUE_TOGETHER, "chunk_id, table, lease_epoch"): 2}),
    Defect("a window inside out", "windows", lambda t: chunk(t, 7).update(low_lsn=chunk(t, 7)["high_lsn"]),
           {("windows", IN_SET, "inside_out"): 1}),
    Defect("a row read and not accounted for", "windows", lambda t: chunk(t, 8).update(rows_read=5),
           {("windows", EQUAL, "rows_read, rows_accounted"): 1}),
    Defect("fewer than no rows dropped", "windows", lambda t: chunk(t, 9).update(rows_dropped=-1, rows_read=3),
           {("windows", BETWEEN, "rows_dropped"): 1}),
    Defect("a row emitted that is in no event", "windows", lambda t: chunk(t, 6).update(rows_emitted=5, rows_read=5),
           {("windows", EQUAL, "rows_emitted, reads_in_events"): 1}),
    Defect("a fill that is in no event", "windows", lambda t: chunk(t, 10).update(rows_filled=1, rows_read=1),
           {("windows", EQUAL, "rows_filled, fills_in_events"): 1}),
    Defect("a removal that is in no event", "windows", lambda t: chunk(t, 11).update(rows_removed=1),
           {("windows", EQUAL, "rows_removed, removals_in_events"): 1}),
    Defect("a closed window of no chunk", "windows", lambda t: t.rows.append({**chunk(t, 10), "chunk_id": None,
                                                                            "rows_filled": 0, "rows_read": 0}),
           {("windows", IN_SET, "nameless"): 1}),
]
EVENTS = [
    Defect("a dumped row is in no event", "events", lambda t: t.drop(**event({"id": "2"}, "r")),
           {("windows", EQUAL, "rows_emitted, reads_in_events"): 1}),
    Defect("one position twice", "events", lambda t: t.copy({}, table="public.visits"),
           {("events", UNIQUE_TOGETHER, "incarnation, lsn, seq"): 2}),
    *(
        Defect(f"an event without its {name}", "events",
               lambda t, name=name, number=number: t.set({name: None}, **line(number)),  # type: ignore[misc]
               {("events", NULL, name): 1})
        for number, name in enumerate(("incarnation", "lsn", "seq", "batch", "op", "origin"), 2)
    ),
    Defect("an event without its table", "events", lambda t: t.set({"table": None}, **line(8)),
           {("events", NULL, "table"): 1, ("events", IN_SET, "unknown_schema"): 1}),
    Defect("an operation there is none of", "events", lambda t: t.set({"op": "x"}, **line(9)),
           {("events", IN_SET, "op"): 1}),
    Defect("an origin there is none of", "events", lambda t: t.set({"origin": "elsewhere"}, **line(10)),
           {("events", IN_SET, "origin"): 1}),
    Defect("an event without a key", "events", lambda t: t.set({"key": None}, **line(11)),
           {("events", IN_SET, "lacks_key"): 1}),
    Defect("an event with half a key", "events",
           lambda t: t.set({"key": [("order_id", "12"), ("place", None)]}, **line(12)),
           {("events", IN_SET, "lacks_key"): 1}),
    Defect("a create without an image", "events", lambda t: t.set({"after": None}, **line(13)),
           {("events", IN_SET, "lacks_image"): 1}),
    Defect("an unknown schema", "events", lambda t: t.set({"schema_id": "ffff"}, **line(14)),
           {("events", IN_SET, "unknown_schema"): 1}),
    Defect("a column lost from a whole image", "events", lost_image_part, {("events", IN_SET, "columns_lost"): 1}),
    Defect("NULL where none may be", "events", null_in_not_null, {("events", IN_SET, "null_in_not_null"): 1}),
    Defect("an event older than the batch before", "events",
           lambda t: t.set({"lsn": 9000}, **event({"id": "105"})), {("order", IN_SET, "position_fell"): 1}),
]
STATE = [
    Defect("a key twice", "orders", lambda t: t.copy({}, id=9), {("state", UNIQUE, "_key"): 2}),
    Defect("a row without its key", "orders", lambda t: t.set({"_key": None}, id=10), {("state", NULL, "_key"): 1}),
    Defect("a key column that is NULL", "orders", lambda t: t.set({"id": None}, id=11), {("state", NULL, "id"): 1}),
    *(
        Defect(f"a row without its {name}", "orders",
               lambda t, name=name, number=number: t.set({name: None}, id=number),  # type: ignore[misc]
               {("state", NULL, name): 1})
        for number, name in enumerate(("_incarnation", "_lsn", "_seq", "_deleted"), 12)
    ),
    Defect("a row newer than events", "orders", lambda t: t.set({"_lsn": 99_999}, id=16),
           {("state", IN_SET, "_newer_than_events"): 1}),
    Defect("a deleted row that is there", "orders", lambda t: t.set({"note": "x"}, id=1),
           {("state", IN_SET, "_tombstone_has_values"): 1}),
    Defect("a missing value that is there", "orders", lambda t: t.set({"_missing": ["note"]}, id=17),
           {("state", IN_SET, "_missing_has_value"): 1}),
    Defect("NULL in a NOT NULL column", "orders", lambda t: t.set({"customer": None}, id=18),
           {("state", NULL, "customer"): 1}),
    Defect("NULL in a NOT NULL column of odd name", "orders", lambda t: t.set({"d`e": None}, id=19),
           {("state", NULL, "d`e"): 1}),
    Defect("a row twice in a table without a key", "visits", lambda t: t.copy({}, _seq=160),
           {("state", UNIQUE_TOGETHER, "_incarnation, _lsn, _seq"): 2}),
]
DEFECTS = [*LANDING, *LEDGER, *EVENTS, *STATE]
HARMLESS = [Defect("NULL that is explained", "orders", legitimate_nulls, {})]


def plant(paths: Paths, defects: list[Defect]) -> None:
    """Spoils each table once, by all its defects."""
    for table in dict.fromkeys(defect.table for defect in defects):
        path = paths.state("public", table) if table in ("orders", "visits") else getattr(paths, table)
        delta = DeltaTable(path)
        before = delta.to_pyarrow_table()
        rows = Rows(before.to_pylist())
        for defect in defects:
            if defect.table == table:
                defect.spoil(rows)
        if table == "landing":
            delta.alter.set_table_properties({"delta.appendOnly": "false"})
        write_deltalake(delta, pa.Table.from_pylist(rows.rows, schema=before.schema), mode="overwrite")
