"""Write the class-data archive with which later JVMs start sooner.

Place: set-up runs ``python -m dblake.spark.class_archive``. Starts Spark once, works a little with Delta, and lets the
JVM archive the classes it has loaded. Guarantee: an archive is complete or absent. Using it is ``startup``'s.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from delta.tables import DeltaTable
from pyspark import SparkContext

from dblake.spark.session import delta_jars, spark_session
from dblake.spark.startup import ARCHIVE_TO, archive_path


def write_class_archive() -> Path:
    """Start Spark, let its JVM archive its classes, and return the archive's path; remove archives of other jars."""
    archive = archive_path(delta_jars())
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="classes-") as folder:
        partial = Path(folder) / archive.name
        os.environ[ARCHIVE_TO] = str(partial)
        spark = spark_session("dblake set-up", **{"spark.master": "local[1]"})
        _load_classes(f"{folder}/table")
        gateway = SparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        # The JVM ends with its standard input.
        gateway.proc.stdin.close()
        gateway.proc.wait(120)
        partial.replace(archive)
    for file in Path(sys.prefix).glob("spark-*.jsa"):
        if file != archive:
            file.unlink(missing_ok=True)
    return archive


def _load_classes(path: str) -> None:
    """Write, delete, compact and read a small table, as maintenance and checks do."""
    spark = spark_session("dblake set-up")
    for _ in range(2):
        rows = spark.range(1000).selectExpr("id", "id % 7 AS kind", "cast(id AS string) AS text")
        rows.write.format("delta").mode("append").save(path)
    table = DeltaTable.forPath(spark, path)
    table.delete("id = 3")
    table.optimize().executeCompaction()
    table.vacuum(168)
    read = spark.read.format("delta").load(path)
    read.groupBy("kind").agg({"text": "max"}).join(read.where("id < 10"), "kind").orderBy("id").collect()


if __name__ == "__main__":
    write_class_archive()
