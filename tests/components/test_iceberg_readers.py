"""Iceberg tables read by other engines, each in an environment of its own: ``./spark-submit.sh tests --components``."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.state import Event
from tests.support.report import note_version
from tests.support.wheel import HOME
from tests.unit.serve.iceberg.test_publish import Published
from tests.unit.transform.state.test_merge_property import to_arrow

Read = Callable[[Published, int | None], list[list[str]]]

_DUCKDB = """
import duckdb, duckdb_ext, json, pathlib, sys
metadata, snapshot = sys.argv[1:]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "iceberg"):
    (file,) = pathlib.Path(duckdb_ext.__path__[0]).rglob(f"{name}.duckdb_extension")
    connection.load_extension(str(file))
at = f", snapshot_from_id={snapshot}" if snapshot != "None" else ""
rows = connection.execute(f"SELECT id, a FROM iceberg_scan('{metadata}'{at}) ORDER BY id").fetchall()
print(json.dumps(rows))
"""
_SPARK = """
import json, sys
from pyspark.sql import SparkSession
uri, warehouse, snapshot = sys.argv[1:]
catalog = "spark.sql.catalog.default"
session = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.jars.packages",
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.46.0.0")
    .config(catalog, "org.apache.iceberg.spark.SparkCatalog").config(f"{catalog}.type", "jdbc")
    .config(f"{catalog}.uri", f"jdbc:{uri}").config(f"{catalog}.jdbc.schema-version", "V1")
    .config(f"{catalog}.warehouse", warehouse).getOrCreate()
)
read = session.read if snapshot == "None" else session.read.option("versionAsOf", snapshot)
rows = read.table("default.shop.t").select("id", "a").orderBy("id").collect()
print(json.dumps([list(row) for row in rows]))
"""


def run(program: str, *arguments: str) -> list[list[str]]:
    python = Path(os.environ["DBLAKE_COMPONENTS_VENV"]) / "bin" / "python"
    # The command's own Spark has a configuration and extensions that this one does not know.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTHON"))}
    done = subprocess.run(
        [str(python), "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=250,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[list[str]] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows


def by_duckdb(lake: Published, snapshot: int | None) -> list[list[str]]:
    (pinned,) = re.findall(r"^duckdb==(\S+)$", (HOME / "requirements-components.txt").read_text(), re.MULTILINE)
    note_version("DuckDB", pinned)
    return run(_DUCKDB, lake.iceberg.metadata_location, str(snapshot))


def by_spark(lake: Published, snapshot: int | None) -> list[list[str]]:
    properties = lake.catalog.properties
    return run(_SPARK, properties["uri"].replace("///", ""), properties["warehouse"], str(snapshot))


@pytest.mark.parametrize("read", [by_duckdb, by_spark], ids=["duckdb", "spark"])
def test_reader_finds_rows_of_state(tmp_path: Path, read: Read) -> None:
    """Creates, deletes and updates, now and at the first snapshot."""
    lake = Published(tmp_path)
    steps = [("c", range(100), "x"), ("d", range(0, 100, 3), ""), ("u", range(0, 100, 7), "y")]
    for batch, (op, numbers, value) in enumerate(steps, 1):
        image: dict[str, str | None] = {} if op == "d" else {"a": value}
        lake.merge(to_arrow([Event((1, batch, n), op, f"k{n}", image, batch) for n in numbers]), batch)
        lake.publish()
    expected = sorted([row["id"], row["a"]] for row in lake.expected())
    assert len(expected) == 71 and read(lake, None) == expected
    first = min(lake.iceberg.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    assert read(lake, first.snapshot_id) == sorted([f"k{n}", "x"] for n in range(100))
