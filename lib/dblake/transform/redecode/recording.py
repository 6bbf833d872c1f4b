"""Record a comparison in the redecode ledger: the table's columns, and the commit that precedes any swap.

Place: between ``compare``, whose counts it stores, and ``ledger``, which reads them.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import Application
from dblake.transform.redecode.changed_tables import COUNTS
from dblake.transform.redecode.ledger import DifferenceLine, RedecodeRun, parse_lines

#: ``of`` is the compared table: ``schemas``, ``windows`` or ``events``. A line without ``batch`` counts the rows that
#: are the same in all batches; the one line without ``of`` describes the run itself.
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


def record_comparison(spark: SparkSession, paths: Paths, run: RedecodeRun, counts: DataFrame) -> None:
    """Append a run's lines; ``counts`` has ``of`` and the columns of ``count_differences``."""
    run_line = spark.createDataFrame([(None,)], StructType([StructField("of", StringType())]))
    lines = _as_lines(counts).unionByName(run_line, allowMissingColumns=True)
    run_columns = {"run": run.number, "decoder": run.decoder, "first": run.first, "last": run.last}
    rows = lines.withColumns(
        {name: F.lit(value) for name, value in run_columns.items()} | {"at": F.current_timestamp()}
    )
    rows = rows.select(*(F.col(f"`{field.name}`").cast(field.dataType) for field in REDECODED)).coalesce(1)
    application = Application.redecode(paths.source)
    write = rows.write.format("delta").mode("append").options(txnAppId=application, txnVersion=run.number)
    with commit_lock(paths.redecoded):
        write.save(paths.redecoded)


def collect_lines(counts: DataFrame) -> list[DifferenceLine]:
    """Return a comparison's lines without recording them; ``counts`` are those of ``record_comparison``."""
    return parse_lines([row.asDict() for row in _as_lines(counts).collect()])


def _as_lines(counts: DataFrame) -> DataFrame:
    """Return the counts that differ as they are, and the sum of the others, without a batch."""
    differs = reduce(or_, (F.col(name) > 0 for name in COUNTS[1:]))
    alike = counts.where(~differs).groupBy("of", "table", "op").agg(F.sum("same").alias("same"))
    return counts.where(differs).unionByName(alike, allowMissingColumns=True)
