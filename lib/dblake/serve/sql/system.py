"""A source's own tables in SQL, as ``dblake.NAME``: where they lie, and their columns before they exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.lake.frontier import FRONTIER
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import SCHEMAS
from dblake.base.lake.verifications import VERIFICATIONS
from dblake.serve.consume.dead_letters import DEAD_LETTERS
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.schema import WINDOWS


@dataclass(frozen=True, slots=True)
class SystemTable:
    """One table: ``lsn`` and ``seq`` are SQL for the position of a row within its incarnation."""

    path: Callable[[Paths], str]
    schema: pa.Schema
    lsn: str = "lsn"
    seq: str = "seq"


SYSTEM_TABLES = {
    "events": SystemTable(lambda paths: paths.events, EVENT_COLUMNS),
    "schemas": SystemTable(lambda paths: paths.schemas, SCHEMAS),
    "windows": SystemTable(lambda paths: paths.windows, WINDOWS, "high_lsn", "0"),
    "frontier": SystemTable(lambda paths: paths.frontier, FRONTIER),
    "verifications": SystemTable(lambda paths: paths.verifications, VERIFICATIONS, seq="0"),
    "dead_letters": SystemTable(lambda paths: paths.dead_letters, DEAD_LETTERS),
}


def as_of_sql(rows: str, table: SystemTable, position: Position | None) -> str:
    """Return a relation of the rows at or before a position; None is before all."""
    if position is None:
        return f"(SELECT * FROM {rows} WHERE false)"
    at = f"({position.incarnation}, {position.lsn}, {position.seq})"
    return f"(SELECT * FROM {rows} WHERE (incarnation, {table.lsn}, {table.seq}) <= {at})"
