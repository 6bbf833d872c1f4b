"""What a reader of one table's events reads, of forty tables in one events table.

The reader is DuckDB over the files that the Delta log lists, as a user's own tool would be. Bytes are those that the
process reads from files, the page cache included.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import duckdb
import numpy as np
from deltalake import DeltaTable

from benchmarks.folded_events import SOURCE, FoldedEvents
from benchmarks.spark_half import Measured, Part, cost_of
from dblake.base.lake.layout import Paths

_TABLES = [f"public.t{number}" for number in range(40)]
_BATCHES, _BATCH_ROWS = 8, 125_000


def measure_one_table(folder: Path, rounds: int) -> list[Measured]:
    """Measure with events of all tables mixed, and with 5,000 events of a table in a row, as bulk changes bring."""
    found = []
    for name, in_a_row in (("mixed", 1), ("5,000 in a row", 5_000)):
        paths = Paths(str(folder / str(in_a_row)), SOURCE)
        events, order = FoldedEvents(paths, _TABLES), np.arange(_BATCH_ROWS)
        for batch in range(_BATCHES):
            events.append([_TABLES[n] for n in (order + batch * _BATCH_ROWS) // in_a_row % 40], order, "u")
        files = DeltaTable(paths.events).file_uris()
        one, every = (partial(_read, files, where) for where in (f"\"table\" = '{_TABLES[7]}'", "true"))
        share = _bytes_of(one) / _bytes_of(every)
        found.append(Measured(
            f"events, reader of one table in forty ÷ of all, {name}", _BATCHES * _BATCH_ROWS,
            [cost_of(one) for _ in range(rounds)], [cost_of(every) for _ in range(rounds)], "reported",
            facts={"share of bytes": round(share, 3)},
        ))
    return found


def _read(files: list[str], where: str) -> None:
    with duckdb.connect() as connection:
        connection.read_parquet(files).filter(where).to_arrow_table()


def _bytes_of(read: partial[None]) -> int:
    before = _bytes_read()
    read()
    return _bytes_read() - before


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text("ascii").split("rchar: ")[1].split()[0])


PARTS = (Part("Events: one table in forty", measure_one_table),)
