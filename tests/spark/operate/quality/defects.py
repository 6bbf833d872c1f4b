"""Defects to inject into a warehouse, each with the expectations that a check must report as failed.

Each table is read, its rows are changed in Python and written back in one commit, which keeps the table's Delta
transaction identifiers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from dblake.base.lake.layout import Paths

Row = dict[str, Any]
Failure = tuple[str, str, str]
"""Suite, expectation (its name without the common prefix) and column."""

NULL, IN_SET, UNIQUE = "values_to_not_be_null", "values_to_be_in_set", "values_to_be_unique"
UNIQUE_TOGETHER, EQUAL, BETWEEN = "columns_to_be_unique", "pair_values_to_be_equal", "values_to_be_between"


@dataclass(frozen=True)
class Rows:
    """A table's rows, which defects change in place."""

    rows: list[Row]

    def first(self, **where: Any) -> Row:
        """Return the first row with these values."""
        return next(row for row in self.rows if all(row[name] == value for name, value in where.items()))

    def set(self, values: Row, **where: Any) -> None:
        self.first(**where).update(values)

    def copy(self, values: Row, **where: Any) -> None:
        self.rows.append({**self.first(**where), **values})

    def drop(self, **where: Any) -> None:
        self.rows.remove(self.first(**where))


Inject = Callable[[Rows], None]


@dataclass(frozen=True)
class Defect:
    """A defect of one table of ``Paths``, and the failures it causes with their number of unexpected rows."""

    name: str
    table: str
    inject: Inject
    failures: dict[Failure, int]


def event(key: dict[str, str], op: str = "c") -> Row:
    """Match the event of a key."""
    return {"op": op, "key": list(key.items())}


def line(number: int) -> Row:
    return event({"order_id": str(number), "place": "1"})


def without(row: Row, name: str) -> list[tuple[str, str | None]]:
    return [(column, value) for column, value in row["after"] if column != name]


def chunk(rows: Rows, number: int) -> Row:
    """Return an entry of the ledger, by the order of high watermarks."""
    return sorted((row for row in rows.rows if row["dump_id"] is not None), key=lambda row: row["high_lsn"])[number]


def drop_image_column(rows: Rows) -> None:
    row = rows.first(**event({"id": "13"}))
    row["after"] = without(row, "note")


def set_not_null_to_null(rows: Rows) -> None:
    row = rows.first(**event({"id": "14"}))
    row["after"] = [*without(row, "customer"), ("customer", None)]


def explain_nulls(rows: Rows) -> None:
    """Inject NULLs that the rows explain."""
    rows.set({"customer": None, "_missing": ["customer"]}, id=20)
    rows.set({"customer": None, "_lossy": ["customer"]}, id=21)


def batch_of_lease(rows: Rows, number: int) -> list[Row]:
    """Return the rows of the batch that the ``number``-th lease after the dump's wrote; batch numbers vary by run."""
    batch = next(row["batch"] for row in rows.rows if row["kind"] == "row" and row["lease_epoch"] == 3 + number)
    return [row for row in rows.rows if row["batch"] == batch]


def drop_batch(rows: Rows) -> None:
    for row in batch_of_lease(rows, 0):
        rows.rows.remove(row)


def repeat_batch(rows: Rows) -> None:
    row = batch_of_lease(rows, 1)[0]
    rows.rows.append({**row, "landed_at": row["landed_at"] + timedelta(seconds=1)})


def lower_lease(rows: Rows) -> None:
    for row in batch_of_lease(rows, 3):
        row["lease_epoch"] = 1


def low_watermark(rows: list[Row], chunk_id: str | None) -> Row:
    return {**rows[-1], "kind": "low", "table": "public.orders", "chunk_id": chunk_id}


def newest_batch(rows: Rows) -> list[Row]:
    last = max(row["batch"] for row in rows.rows if row["batch"])
    return [row for row in rows.rows if row["batch"] == last]


LANDING = [
    Defect("a batch is missing", "landing", drop_batch, {("landing", IN_SET, "missing_after"): 1}),
    Defect("a batch landed twice", "landing", repeat_batch, {("landing", IN_SET, "commits"): 1}),
    Defect("a batch of two leases", "landing", lambda t: batch_of_lease(t, 2)[0].update(lease_epoch=4),
           {("landing", IN_SET, "leases"): 1}),
    Defect("an older lease came later", "landing", lower_lease, {("landing", IN_SET, "lease_fell"): 1}),
    Defect("a log position that falls", "landing", lambda t: batch_of_lease(t, 4)[-1].update(lsn=5000),
           {("landing", IN_SET, "position_fell"): 1}),
    Defect("an unknown kind", "landing", lambda t: batch_of_lease(t, 5)[-1].update(kind="?"),
           {("landing", IN_SET, "unknown_kind"): 1}),
    Defect("a row without a batch", "landing", lambda t: t.copy({"batch": None}, batch=1, kind="row"),
           {("landing", NULL, "batch"): 1}),
    Defect("a low watermark without a chunk", "landing", lambda t: t.rows.append(low_watermark(newest_batch(t), None)),
           {("watermarks", NULL, "chunk_id"): 1}),
    Defect("an orphan that is not in the ledger", "landing",
           lambda t: t.rows.append(low_watermark(batch_of_lease(t, 6), "ghost")),
           {("watermarks", IN_SET, "unrecorded"): 1}),
]
LEDGER = [
    Defect("a window that is not in the ledger", "windows", lambda t: t.rows.remove(chunk(t, 1)),
           {("watermarks", IN_SET, "unrecorded"): 2}),
    Defect("a window without a status", "windows", lambda t: chunk(t, 2).update(status=None),
           {("windows", NULL, "status"): 1}),
    Defect("a window neither closed nor discarded", "windows", lambda t: chunk(t, 3).update(status="open"),
           {("windows", IN_SET, "status"): 1}),
    Defect("a window discarded for no reason", "windows", lambda t: chunk(t, 4).update(status="discarded"),
           {("windows", IN_SET, "unexplained"): 1}),
    Defect("a window twice", "windows", lambda t: t.rows.append(dict(chunk(t, 5))),
           {("windows", UNIQUE_TOGETHER, "chunk_id, table, lease_epoch"): 2}),
    Defect("a window with low after high", "windows", lambda t: chunk(t, 7).update(low_lsn=chunk(t, 7)["high_lsn"]),
           {("windows", IN_SET, "inverted"): 1}),
    Defect("a row read and not accounted for", "windows", lambda t: chunk(t, 8).update(rows_read=5),
           {("windows", EQUAL, "rows_read, rows_accounted"): 1}),
    Defect("a negative number of dropped rows", "windows", lambda t: chunk(t, 9).update(rows_dropped=-1, rows_read=3),
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
    Defect("an unknown operation", "events", lambda t: t.set({"op": "x"}, **line(9)),
           {("events", IN_SET, "op"): 1}),
    Defect("an unknown origin", "events", lambda t: t.set({"origin": "elsewhere"}, **line(10)),
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
    Defect("a column missing from a whole image", "events", drop_image_column, {("events", IN_SET, "columns_lost"): 1}),
    Defect("NULL in a NOT NULL column of an event", "events", set_not_null_to_null,
           {("events", IN_SET, "null_in_not_null"): 1}),
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
    Defect("a tombstone with a value", "orders", lambda t: t.set({"note": "x"}, id=1),
           {("state", IN_SET, "_tombstone_has_values"): 1}),
    Defect("a value in a column that _missing names", "orders", lambda t: t.set({"_missing": ["note"]}, id=17),
           {("state", IN_SET, "_missing_has_value"): 1}),
    Defect("NULL in a NOT NULL column", "orders", lambda t: t.set({"customer": None}, id=18),
           {("state", NULL, "customer"): 1}),
    Defect("NULL in a NOT NULL column with a backquote", "orders", lambda t: t.set({"d`e": None}, id=19),
           {("state", NULL, "d`e"): 1}),
    Defect("a row twice in a table without a key", "visits", lambda t: t.copy({}, _seq=160),
           {("state", UNIQUE_TOGETHER, "_incarnation, _lsn, _seq"): 2}),
]
DEFECTS = [*LANDING, *LEDGER, *EVENTS, *STATE]
HARMLESS = [Defect("an explained NULL", "orders", explain_nulls, {})]


def inject(paths: Paths, defects: list[Defect]) -> None:
    """Rewrite each table once, with all its defects."""
    for table in dict.fromkeys(defect.table for defect in defects):
        path = paths.state("public", table) if table in ("orders", "visits") else getattr(paths, table)
        delta = DeltaTable(path)
        original = delta.to_pyarrow_table()
        rows = Rows(original.to_pylist())
        for defect in defects:
            if defect.table == table:
                defect.inject(rows)
        if table == "landing":
            delta.alter.set_table_properties({"delta.appendOnly": "false"})
        write_deltalake(delta, pa.Table.from_pylist(rows.rows, schema=original.schema), mode="overwrite")
