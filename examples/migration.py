"""Migrate a shop from MariaDB to PostgreSQL while it is in use, and change its tables on the way.

The MariaDB database ``shop`` stays the source of truth until the switch. ``MigratedShop`` is an output that keeps a
PostgreSQL database in step with it: ``customers`` becomes ``people`` with one column for the name, and amounts in cents
become decimals. Configuration::

    outputs:
      migration:
        class: examples.migration:MigratedShop
        tables: ["shop.customers", "shop.orders"]
        settings: {url: "postgresql://app@new.example/shop", password: "${env:NEW_PASSWORD}", schema: public}

Run ``subscribe --output migration``. Before the switch, ``compare_reads`` runs the application's reads on both
databases. For the switch: stop writes at the source, run ``subscribe --output migration --until-caught-up``, compare,
point the application to PostgreSQL, and drop the tables ``_dblake_*`` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dblake.outputs import Column, Event, Image, SqlOutput, TableSchema, Transaction

Rows = list[tuple[Any, ...]]
_TABLES = {"shop.customers": "shop.people"}


class MigratedShop(SqlOutput):
    """The SQL output of a changed stream. All guarantees of the SQL output hold: exactly once, whole transactions."""

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        """Change the events, then apply them."""
        changed = [replace(one, events=[change_event(event) for event in one.events]) for one in transactions]
        super().write(changed, checkpoint)


def change_event(event: Event) -> Event:
    """Return an event of the new tables. Images may lack columns that were not sent."""
    schema = change_schema(event.schema)
    change = _change_customer if event.table == "shop.customers" else _change_order
    return replace(
        event, table=schema.table, schema=schema, schema_id=schema.schema_id, before=None,
        after=None if event.after is None else change(event.after),
    )


@lru_cache(maxsize=64)
def change_schema(schema: TableSchema) -> TableSchema:
    """Return the new table's schema. A column that the source adds later passes unchanged."""
    columns: list[Column] = []
    for column in schema.columns:
        if column.name == "first_name":
            columns.append(Column("name", "text"))
        elif column.name == "cents":
            columns.append(Column("amount", "numeric(12,2)"))
        elif column.name != "last_name":
            columns.append(column)
    return TableSchema(_TABLES.get(schema.table, schema.table), tuple(columns))


def _change_customer(image: Image) -> Image:
    rest = {name: value for name, value in image.items() if name not in ("first_name", "last_name")}
    # MariaDB logs whole rows, so the two come together.
    if "first_name" in image and "last_name" in image:
        rest["name"] = " ".join(filter(None, (image["first_name"], image["last_name"])))
    return rest


def _change_order(image: Image) -> Image:
    rest = {name: value for name, value in image.items() if name != "cents"}
    if "cents" in image:
        cents = image["cents"]
        rest["amount"] = None if cents is None else f"{int(cents) // 100}.{int(cents) % 100:02d}"
    return rest


@dataclass(frozen=True, slots=True)
class Read:
    """One read of the application, as SQL of both databases; both must return the same rows in the same order."""

    name: str
    old: str
    new: str


READS = (
    Read("revenue by customer",
         "SELECT c.id, CONCAT(c.first_name, ' ', c.last_name), CAST(SUM(o.cents) / 100 AS decimal(12,2)) "
         "FROM shop.customers c JOIN shop.orders o ON o.customer = c.id GROUP BY c.id, 2 ORDER BY c.id",
         "SELECT c.id, c.name, SUM(o.amount) FROM people c JOIN orders o ON o.customer = c.id GROUP BY c.id, c.name "
         "ORDER BY c.id"),
    Read("newest orders", "SELECT id, customer, ordered_at FROM shop.orders ORDER BY id DESC LIMIT 20",
         "SELECT id, customer, ordered_at FROM orders ORDER BY id DESC LIMIT 20"),
    Read("customers without an order",
         "SELECT id FROM shop.customers WHERE id NOT IN (SELECT customer FROM shop.orders) ORDER BY id",
         "SELECT id FROM people WHERE id NOT IN (SELECT customer FROM orders) ORDER BY id"),
)


def compare_reads(
    old: Callable[[str], Rows], new: Callable[[str], Rows], reads: Iterable[Read] = READS
) -> list[str]:
    """Run reads on both databases; return the names of those whose rows differ. ``old`` and ``new`` run a query."""
    return [read.name for read in reads if list(map(tuple, old(read.old))) != list(map(tuple, new(read.new)))]
