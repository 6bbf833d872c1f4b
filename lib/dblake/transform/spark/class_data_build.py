"""Build the archive of Spark's classes: ``python -m dblake.transform.spark.class_data_build``, at set-up.

Place: above ``session``, with whose JVM it runs the kinds of statements that jobs do. Guarantee: a failure costs jobs
some time at their start, and nothing else.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from dblake.transform.spark.class_data import SUBMIT_OPTIONS, class_data_folder, find_archive, quoted
from dblake.transform.spark.session import spark_session

_EXIT_SECONDS = 300
"""How long the JVM may take to write the archive."""


def build_archive() -> Path | None:
    """Build the archive if there is none for this Java and these jars; return its file, None if there is none.

    A file without content records that this Java writes none, so that the next set-up does not try again.
    """
    folder = class_data_folder()
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    archive = find_archive()
    if not archive.exists():
        print("dblake: archiving Spark's classes, so that jobs start faster; once, for up to a minute", file=sys.stderr)
        for older in folder.glob("spark-*"):
            older.unlink()
        partial = archive.with_suffix(".partial")
        options = os.environ.get(SUBMIT_OPTIONS, "")
        os.environ[SUBMIT_OPTIONS] = f"{options} {quoted(f'-XX:ArchiveClassesAtExit={partial}')}".strip()
        _run_spark()
        if not partial.exists():
            partial.touch()
        partial.replace(archive)
    return archive if archive.stat().st_size else None


def _run_spark() -> None:
    """Start Spark as jobs do, load the classes of their work, and wait for the JVM's end."""
    from pyspark import SparkContext

    spark = spark_session("dblake setup")
    with tempfile.TemporaryDirectory(prefix="dblake-classes-") as folder:
        path = str(Path(folder) / "t")
        rows = spark.range(100).selectExpr(
            "id", "id % 7 AS k", "CAST(id AS string) AS v", "map('a', CAST(id AS string)) AS after",
            "current_timestamp() AS at", "CAST(id AS decimal(38, 2)) AS n",
        )
        rows.write.format("delta").partitionBy("k").save(path)
        read = spark.read.format("delta").load(path)
        read.createOrReplaceTempView("t")
        spark.sql(
            "SELECT k, count(DISTINCT v), max(struct(at, id)), sum(n), collect_list(after) FROM t"
            " JOIN (SELECT k AS other, row_number() OVER (PARTITION BY k ORDER BY id) AS r FROM t) ON k = other"
            " WHERE after['a'] <> '' GROUP BY k ORDER BY k"
        ).collect()
        spark.sql(
            f"MERGE INTO delta.`{path}` a USING (SELECT * FROM t WHERE k = 1) b ON a.id = b.id AND a.k = b.k"
            " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        read.mapInArrow(lambda batches: batches, read.schema).count()
        spark.createDataFrame(read.toArrow()).write.format("delta").mode("append").save(path)
        spark.sql(f"OPTIMIZE delta.`{path}`")
        spark.sql(f"VACUUM delta.`{path}`")
        spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None, "Spark has been started"
    gateway.shutdown()
    # The JVM ends with its stdin, and writes the archive then.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_EXIT_SECONDS)
    finally:
        gateway.proc.kill()


def main() -> None:
    """Build the archive. Report an error but exit with 0: without an archive jobs only start slower."""
    try:
        archive = build_archive()
    except Exception as error:  # noqa: BLE001 - jobs run without an archive
        print(f"dblake: jobs start slower: Spark's classes could not be archived: {error}", file=sys.stderr)
    else:
        if archive is None:
            print("dblake: jobs start slower: this Java writes no archive of classes", file=sys.stderr)


if __name__ == "__main__":
    main()
