"""What makes the JVM of a job on one machine start sooner: a class-data archive, and Delta's jars on its class path.

Place: below ``session``; set-up runs this module (``python -m dblake.spark.startup``), which starts Spark once, works a
little with Delta, and lets the JVM archive the classes it has loaded. A later JVM maps that file into memory instead of
reading, parsing and verifying each class.

Guarantee: the archive only saves time. Its name depends on Java and on all jars; a JVM for which it does not fit, or
that finds it damaged, starts without it. Without an archive jobs start as before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_ARCHIVE_TO = "DBLAKE_ARCHIVE_CLASSES_TO"
"""Where the JVM writes the archive: set only in the process that makes it."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""No warnings about an archive that does not fit."""
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the JVM that only assembles the command line of the next one."""


def set_java_options(jars: Sequence[str], log_settings: Path) -> None:
    """Add options to the environment from which ``spark-submit`` takes those of its JVMs."""
    _add("SPARK_LAUNCHER_OPTS", _LAUNCHER)
    # Spark puts its folder of settings first on the class path, where Java's archives allow no folder with files, and
    # only the folder they were written with: one that does not exist is always the same.
    os.environ["SPARK_CONF_DIR"] = "/nonexistent"
    _add("SPARK_SUBMIT_OPTS", f'"-Dlog4j2.configurationFile={log_settings.as_uri()}"')
    if target := os.environ.get(_ARCHIVE_TO):
        _add("SPARK_SUBMIT_OPTS", f"-XX:ArchiveClassesAtExit={target} {_QUIET}")
    elif (archive := archive_path(jars)).is_file() and " " not in str(archive):
        _add("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={archive} -Xshare:auto {_QUIET}")


def _add(name: str, options: str) -> None:
    os.environ[name] = f"{options} {os.environ.get(name, '')}".strip()


def archive_path(jars: Sequence[str]) -> Path:
    """Return the path of the archive for this Java and these jars."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    files = [java.resolve(), Path(os.environ.get("SPARK_HOME", "")), *map(Path, jars)]
    stamps = [f"{file} {file.stat().st_mtime_ns if file.exists() else 0}" for file in files]
    return Path(sys.prefix) / f"spark-{hashlib.sha256('|'.join(stamps).encode()).hexdigest()[:16]}.jsa"


def write_class_archive() -> Path:
    """Start Spark, let its JVM archive its classes, and return the archive's path; remove archives of other jars."""
    from pyspark import SparkContext

    from dblake.spark.session import delta_jars, spark_session

    archive = archive_path(delta_jars())
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="classes-") as folder:
        partial = Path(folder) / archive.name
        os.environ[_ARCHIVE_TO] = str(partial)
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
    from delta.tables import DeltaTable

    from dblake.spark.session import spark_session

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
