"""The parity tables of all databases: values of every type, as SQL, as canonical text and as state columns.

A parity table has a column per case and a row per value index. A row and its twin (the same values under an id that is
TWIN higher) are inserted at different times: one is captured by a dump, the other from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import zip_longest

import numpy as np

TABLE = "public.parity"
TWIN = 1000


@dataclass(frozen=True, slots=True)
class Value:
    """A value as SQL and as canonical text. ``held``: state can hold it; ``undecoded``: no text, represented as hex."""

    sql: str
    text: str
    held: bool = True
    undecoded: bool = False

    @property
    def lossy(self) -> bool:
        """True if state lists the column in ``_lossy``."""
        return self.undecoded or not self.held


@dataclass(frozen=True, slots=True)
class Case:
    """A column type and its values; ``only`` names the single server that supports it, if not all do."""

    type: str
    values: tuple[Value, ...]
    only: str | None = None


def columns(cases: Sequence[Case]) -> dict[str, str]:
    """Return the type of each column, by column name."""
    return {f"c{number}": case.type for number, case in enumerate(cases)}


def rows(cases: Sequence[Case]) -> list[dict[str, Value]]:
    """Return the values of each row by column; absent columns are NULL. The last row has only NULLs."""
    by_row = zip_longest(*(case.values for case in cases))
    full = [{n: v for n, v in zip(columns(cases), values, strict=True) if v is not None} for values in by_row]
    return [*full, {}]


def inserts(cases: Sequence[Case], first: int) -> list[str]:
    """Return statements that insert all rows, with ids from ``first`` on."""
    statements = []
    for number, row in enumerate(rows(cases), first):
        names, values = ["id", *row], [str(number), *(value.sql for value in row.values())]
        statements.append(f"INSERT INTO {TABLE} ({', '.join(names)}) VALUES ({', '.join(values)})")
    return statements


def state_value(spark_type: str, text: str) -> object:
    """Return a value as a state column of a Spark type has it: instants in microseconds, floats as their repr."""
    return _HELD[spark_type.partition("(")[0]](text)


def _instant(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)


_HELD: dict[str, Callable[[str], object]] = {
    "tinyint": int, "smallint": int, "int": int, "bigint": int, "decimal": Decimal,
    # Comparing floats would miss NaN and the sign of zero.
    "double": lambda text: repr(float(text)), "float": lambda text: repr(float(np.float32(text))),
    "boolean": {"t": True, "f": False}.__getitem__, "string": str,
    "date": date.fromisoformat, "timestamp_ntz": datetime.fromisoformat, "timestamp": _instant,
    "binary": lambda text: bytes.fromhex(text.removeprefix("\\x")),
}
