"""A table's events as a streaming data frame: micro-batches, restarts, and a Delta table kept equal to the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dblake
from dblake.serve.sql.lake import Lake, LakeTable
from tests.support.consumers import LEFT, Shop, folded_shop
from tests.support.ivy import fetched_jars
from tests.unit.serve.consume.test_consumers_page import example
from tests.unit.serve.sql.test_lake import CONF

HOME = Path(__file__).parents[4]
COLUMNS = ["id", "amount", "note"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return folded_shop(tmp_path, 4)


class Copy:
    """What a stream leaves when its rows are applied by key and position; ``batches`` are all it was given."""

    def __init__(self, spark: SparkSession, table: LakeTable, folder: Path) -> None:
        self._spark, self._table, self._folder = spark, table, folder
        self._rows: dict[int, dict[str, Any]] = {}
        self.batches: dict[int, list[Any]] = {}
        self.fails_at: int | None = None

    def run(self, **settings: Any) -> None:
        """Apply what events hold now."""
        frame = self._table.to_stream(self._spark, **settings)
        query = frame.writeStream.foreachBatch(self._apply).option(
            "checkpointLocation", str(self._folder / "checkpoint")
        ).trigger(availableNow=True).start()
        query.awaitTermination()

    def run_documented(self, conf: Path) -> None:
        """Run the first example of docs/consumers.md until it has applied everything."""
        code = example("to_stream(spark)\nquery").replace("public.orders", self._table.name)
        code = code.replace("shop.yaml", str(conf)).replace("./checkpoint", str(self._folder / "checkpoint"))
        names: dict[str, Any] = {"dblake": dblake, "spark": self._spark, "handle": self._apply}
        exec(code, names)  # noqa: S102 - the page's own text
        names["query"].processAllAvailable()
        names["query"].stop()

    def _apply(self, batch: DataFrame, number: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        assert self.batches.setdefault(number, rows) == rows, "a micro-batch that comes again has the same rows"
        self._write(batch, rows, number)
        if number == self.fails_at:
            self.fails_at = None
            raise RuntimeError("after the rows were written")

    def _write(self, batch: DataFrame, rows: list[dict[str, Any]], number: int) -> None:
        for row in rows:
            known = self._rows.get(row["id"])
            if known is None or position(known) < position(row):
                self._rows[row["id"]] = row

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the live rows, sorted as ``Shop.rows`` are."""
        live = [row for row in self._rows.values() if row["_op"] not in ("d", "t")]
        return sorted((tuple(row[name] for name in COLUMNS) for row in live), key=str)


class DeltaCopy(Copy):
    """A Delta table that the function in docs/consumers.md keeps."""

    def __init__(self, spark: SparkSession, table: LakeTable, folder: Path) -> None:
        super().__init__(spark, table, folder)
        self._path = str(folder / "copy")
        code = example("def handle").replace("MERGE INTO copy", f"MERGE INTO delta.`{self._path}` AS copy")
        known: dict[str, Any] = {"expr": F.expr}
        exec(code, known)  # noqa: S102 - the page's own text
        self._handle = known["handle"]

    def _write(self, batch: DataFrame, rows: list[dict[str, Any]], number: int) -> None:
        if not Path(self._path).exists():
            batch.limit(0).write.format("delta").save(self._path)
        self._handle(batch, number)

    def rows(self) -> list[tuple[Any, ...]]:
        live = self._spark.read.format("delta").load(self._path).where("_op NOT IN ('d', 't')")
        return sorted(map(tuple, live.select(*COLUMNS).collect()), key=str)


def position(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["_incarnation"], row["_lsn"], row["_seq"]


def advance(shop: Shop, moves: int) -> None:
    shop.move(moves)
    shop.land()
    shop.reconcile()


@pytest.mark.parametrize(("kind", "size"), [(Copy, 1000), pytest.param(DeltaCopy, 3, marks=pytest.mark.slow)])
def test_stream_resumes_and_equals_source(
    spark: SparkSession, shop: Shop, tmp_path: Path, kind: type[Copy], size: int
) -> None:
    """Bootstrap and changes in many micro-batches, a failure after the rows of one were written, and a restart."""
    copy = kind(spark, Lake(shop.paths).table(LEFT.table), tmp_path)
    advance(shop, 6)
    copy.fails_at = 0
    with pytest.raises(StreamingQueryException, match="after the rows were written"):
        copy.run(max_events=size)
    assert len(copy.batches) == 1
    advance(shop, 5)
    (tmp_path / "shop.yaml").write_text(CONF)
    copy.run_documented(tmp_path / "shop.yaml")
    assert copy.rows() == shop.rows(LEFT.table)
    events = [row for rows in copy.batches.values() for row in rows if row["_origin"] != "state"]
    positions = [position(row) for row in events]
    assert positions == sorted(set(positions)), "each event once, in order"
    parts = [{row["_lsn"] for row in rows if row["_origin"] == "log"} for rows in copy.batches.values()]
    assert len(parts) >= 2 and sum(map(len, parts)) == len(set().union(*parts)), "no transaction is divided"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_auto_cdc_pipeline_equals_source(shop: Shop, tmp_path: Path) -> None:
    """The documented pipeline, run three times by a Spark Connect server."""
    pytest.importorskip("grpc", reason='pip install "pyspark[pipelines]"')
    jars = fetched_jars("spark-catalyst-tests", [f"org.apache.spark:spark-catalyst_2.13:{pyspark.__version__}:tests"])
    code = example("create_auto_cdc_flow").replace("public.orders", LEFT.table)
    (tmp_path / "pipeline.py").write_text(code.replace("/opt/shop/shop.yaml", str(tmp_path / "shop.yaml")))
    (tmp_path / "shop.yaml").write_text(CONF)
    # Those of this process's own session.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.auto_cdc", str(tmp_path / "pipeline.py"), str(tmp_path),
         str(next(jars.iterdir()))],
        env=inherited | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}:{':'.join(filter(None, sys.path))}",
                         "PYSPARK_PYTHON": sys.executable},
        cwd=HOME, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    for _ in range(3):
        process.stdin.write("run\n")
        process.stdin.flush()
        answer = next((line for line in process.stdout if line.startswith("rows:")), None)
        if answer is None:
            break
        found = [(number, amount, note) for number, amount, note in json.loads(answer.removeprefix("rows:"))]
        assert sorted(found, key=str) == shop.rows(LEFT.table)
        advance(shop, 6)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, "\n".join(line for line in errors.splitlines() if not line.startswith("\tat"))
