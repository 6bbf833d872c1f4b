"""The redecode ledger: every run that decoded landing again, and the tables whose rows it changed.

Place: beside the path; ``recording`` writes it, ``state`` reads it, without Spark. Guarantee: a run's lines are
committed before any table is swapped, so the next run of redecode can finish one that was killed, and state detects
which of its tables to rebuild. Progress is recorded in Delta transaction identifiers: of this table for "compared" and
"finished", of the swapped tables for "swapped".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch, record_batch
from dblake.base.lake.query import query_rows
from dblake.transform.redecode.changed_tables import COUNTS


@dataclass(frozen=True, slots=True)
class DifferenceLine:
    """Row counts of one batch, table and op: the same, different, in the old table only, in the new table only."""

    of: str
    batch: int | None
    table: str | None
    op: str | None
    same: int
    different: int
    only_old: int
    only_new: int

    @property
    def differs(self) -> bool:
        """True if any row is not the same."""
        return self.different + self.only_old + self.only_new > 0


@dataclass(frozen=True, slots=True)
class RedecodeRun:
    """One run of redecode: batches ``first`` to ``last``, the ``decoder``'s fingerprint, and the differences."""

    number: int
    decoder: str
    first: int
    last: int
    lines: Sequence[DifferenceLine]

    @property
    def tables(self) -> list[str]:
        """The source tables whose events or schemas differ; state rebuilds their state tables."""
        return sorted({line.table or "" for line in self.lines if line.differs and line.of != "windows"})

    def as_json(self) -> dict[str, object]:
        """Return the run as an object for JSON output."""
        totals = {name: sum(getattr(line, name) for line in self.lines if line.of == "events") for name in COUNTS}
        differing = [asdict(line) for line in self.lines if line.differs]
        return {"from": self.first, "to": self.last, "events": totals, "tables": self.tables, "differing": differing}


def newest_compared_run(paths: Paths) -> int:
    """Return the number of the newest run whose comparison is recorded; 0 before the first."""
    return newest_batch(paths.redecoded, Application.redecode(paths.source))


def newest_finished_run(paths: Paths) -> int:
    """Return the number of the newest finished run; 0 before the first."""
    return newest_batch(paths.redecoded, Application.redecode_done(paths.source))


def record_finished_run(paths: Paths, run: int) -> None:
    """Record that a run is finished."""
    record_batch(paths.redecoded, Application.redecode_done(paths.source), run)


def parse_lines(rows: Sequence[Mapping[str, Any]]) -> list[DifferenceLine]:
    """Return the lines that rows of the ledger hold; those of a run itself are left out."""
    lines = [
        DifferenceLine(row["of"], row["batch"], row["table"], row["op"], *(row[name] or 0 for name in COUNTS))
        for row in rows if row["of"] is not None
    ]
    lines.sort(key=lambda line: (line.of, line.table or "", line.batch is None, line.batch or 0, line.op or ""))
    return lines


def read_run(paths: Paths, number: int) -> RedecodeRun:
    """Read a run whose comparison is recorded."""
    rows = query_rows(paths.redecoded, f"SELECT * FROM t WHERE run = {number}")
    run_line = next(row for row in rows if row["of"] is None)
    return RedecodeRun(number, run_line["decoder"], run_line["first"], run_line["last"], parse_lines(rows))
