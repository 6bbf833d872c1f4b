"""The table of what decoding landing again has changed: which runs there were, and which tables' events they touched.

A run's lines stand before any table is swapped, so a run that died in between is finished with them, by whoever
decodes again next; and state finds by them which of its tables are to be built anew. How far a run is say Delta's
transaction identifiers: here when it was compared and done, in the tables themselves when they were swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from dblake.lake.layout import Paths
from dblake.lake.locks import commit_lock
from dblake.lake.log import Application, newest_batch, query_rows, record_batch
from dblake.redecode.compare import COUNTS

#: ``of`` is the table of ours: schemas, windows or events. Lines without a batch sum up what is the same in all of
#: them; the one without ``of`` stands for the run itself.
REDECODED = StructType(
    [
        StructField("run", LongType()),
        StructField("at", TimestampType()),
        StructField("decoder", StringType()),
        StructField("first", LongType()),
        StructField("last", LongType()),
        StructField("of", StringType()),
        StructField("batch", LongType()),
        StructField("table", StringType()),
        StructField("op", StringType()),
        *(StructField(name, LongType()) for name in COUNTS),
    ]
)


@dataclass(frozen=True, slots=True)
class Line:
    """How many rows of a batch, table and letter came out the same, different, or are in the old or new table only."""

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
        """True if anything is not the same."""
        return self.different + self.only_old + self.only_new > 0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of decoding again: batches ``first`` to ``last``, by which ``decoder``, and what came of it."""

    number: int
    decoder: str
    first: int
    last: int
    lines: Sequence[Line]

    @property
    def tables(self) -> list[str]:
        """Those whose events or schemas differ: their state is built anew."""
        return sorted({line.table or "" for line in self.lines if line.differs and line.of != "windows"})

    def facts(self) -> dict[str, object]:
        """For JSON."""
        totals = {name: sum(getattr(line, name) for line in self.lines if line.of == "events") for name in COUNTS}
        differing = [asdict(line) for line in self.lines if line.differs]
        return {"from": self.first, "to": self.last, "events": totals, "tables": self.tables, "differing": differing}


def compared_run(paths: Paths) -> int:
    """The newest run that was compared; 0 before the first."""
    return newest_batch(paths.redecoded, Application.redecode(paths.source))


def done_run(paths: Paths) -> int:
    """The newest run that is done."""
    return newest_batch(paths.redecoded, _done(paths))


def note_done(paths: Paths, run: int) -> None:
    """Notes that a run is done."""
    record_batch(paths.redecoded, _done(paths), run)


def note_compared(spark: SparkSession, paths: Paths, run: Run, found: DataFrame) -> None:
    """Appends a run's lines; ``found`` has ``of`` and what ``compare`` counts."""
    differs = reduce(or_, (F.col(name) > 0 for name in COUNTS[1:]))
    alike = found.where(~differs).groupBy("of", "table", "op").agg(F.sum("same").alias("same"))
    itself = spark.createDataFrame([(None,)], StructType([StructField("of", StringType())]))
    lines = found.where(differs).unionByName(alike, allowMissingColumns=True)
    lines = lines.unionByName(itself, allowMissingColumns=True)
    said = {"run": run.number, "decoder": run.decoder, "first": run.first, "last": run.last}
    rows = lines.withColumns({name: F.lit(value) for name, value in said.items()} | {"at": F.current_timestamp()})
    rows = rows.select(*(F.col(f"`{field.name}`").cast(field.dataType) for field in REDECODED)).coalesce(1)
    application = Application.redecode(paths.source)
    write = rows.write.format("delta").mode("append").options(txnAppId=application, txnVersion=run.number)
    with commit_lock(paths.redecoded):
        write.save(paths.redecoded)


def read_run(paths: Paths, number: int) -> Run:
    """A run that was compared."""
    rows = query_rows(paths.redecoded, f"SELECT * FROM t WHERE run = {number}")
    itself = next(row for row in rows if row["of"] is None)
    lines = [
        Line(row["of"], row["batch"], row["table"], row["op"], *(row[name] or 0 for name in COUNTS))
        for row in rows if row["of"] is not None
    ]
    lines.sort(key=lambda line: (line.of, line.table or "", line.batch is None, line.batch or 0, line.op or ""))
    return Run(number, itself["decoder"], itself["first"], itself["last"], lines)


def changes(paths: Paths) -> dict[str, dict[int, int]]:
    """For each table, which runs that swapped events have changed anything of it, and from which batch on."""
    if not DeltaTable.is_deltatable(paths.redecoded):
        return {}
    swapped = newest_batch(paths.events, Application.redecode(paths.source))
    differs = " OR ".join(f"{name} > 0" for name in COUNTS[1:])
    rows = query_rows(
        paths.redecoded, f"SELECT \"table\", run, min(batch) AS batch FROM t WHERE run <= {swapped} AND ({differs}) "
                         "AND of IN ('schemas', 'events') GROUP BY \"table\", run",
    )
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        found.setdefault(row["table"], {})[row["run"]] = row["batch"]
    return found


def _done(paths: Paths) -> str:
    return Application.redecode_done(paths.source)

