"""What the parity tables of all databases are made of: values of every type, as SQL, as canonical text, and in state.

A table has a column for each case and a row for each number of a value, so that a row and its twin (the same values
under an id that is TWIN higher) can be put there at different times: one for a dump, one for the log.
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
    """A value as SQL and as canonical text; whether state can hold it, and whether it is no text and stands as hex."""

    sql: str
    text: str
    held: bool = True
    undecoded: bool = False

    @property
    def lossy(self) -> bool:
        """True if state names it in ``_lossy``."""
        return self.undecoded or not self.held


@dataclass(frozen=True, slots=True)
class Case:
    """A type and its values; ``only`` names the one server that has it."""

    type: str
    values: tuple[Value, ...]
    only: str | None = None


def columns(cases: Sequence[Case]) -> dict[str, str]:
    """The columns that hold the cases, and their types."""
    return {f"c{number}": case.type for number, case in enumerate(cases)}


def rows(cases: Sequence[Case]) -> list[dict[str, Value]]:
    """What is in each row; columns that are not named there are NULL. The last row has nothing."""
    by_row = zip_longest(*(case.values for case in cases))
    full = [{n: v for n, v in zip(columns(cases), values, strict=True) if v is not None} for values in by_row]
    return [*full, {}]


def inserts(cases: Sequence[Case], first: int) -> list[str]:
    """Statements that put all rows there, under ids from ``first`` on."""
    statements = []
    for number, row in enumerate(rows(cases), first):
        names, values = ["id", *row], [str(number), *(value.sql for value in row.values())]
        statements.append(f"INSERT INTO {TABLE} ({', '.join(names)}) VALUES ({', '.join(values)})")
    return statements


def held(spark_type: str, text: str) -> object:
    """What a state column of a Spark type holds of a value: instants in microseconds, floats as they are written."""
    return _HELD[spark_type.partition("(")[0]](text)


def _instant(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)


_HELD: dict[str, Callable[[str], object]] = {
    "tinyint": int, "smallint": int, "int": int, "bigint": int, "decimal": Decimal,
    # Neither NaN nor the sign of a zero shows when floats are compared.
    "double": lambda text: repr(float(text)), "float": lambda text: repr(float(np.float32(text))),
    "boolean": {"t": True, "f": False}.__getitem__, "string": str,
    "date": date.fromisoformat, "timestamp_ntz": datetime.fromisoformat, "timestamp": _instant,
    "binary": lambda text: bytes.fromhex(text.removeprefix("\\x")),
}
