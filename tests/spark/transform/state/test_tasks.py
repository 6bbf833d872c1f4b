"""State's tasks under failure: a kill between two tables' commits, on executors, and with a concurrent writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.lake.frontier import read_frontier
from dblake.transform.spark.session import Engine, EngineSession
from dblake.transform.state.run import run_state
from dblake.transform.state.upsert import Rewritten
from tests.spark.transform.state.conftest import Lake, table_schema
from tests.support.effort import with_effort

HOME = Path(__file__).parents[4]
TABLES = [table_schema(f"public.t{n}", "id integer key", "a text") for n in range(4)]
STATE = """
import sys
from dblake.base.lake.layout import Paths
from dblake.transform.spark.session import spark_session
from dblake.transform.state import run
run.SLICE_BYTES = int(sys.argv[3])
spark = spark_session("state", **{"spark.master": sys.argv[2]})
results = run.run_state(spark, Paths(sys.argv[1], "shop"), parallel=1)
assert all(result.error is None for result in results), results
spark.stop()
"""


def run_process(lake: Lake, master: str, *, failpoint: str = "", slice_bytes: int = 1 << 30) -> int:
    """Run state in a new process; return its exit code."""
    environment = {**os.environ, "PYTHONPATH": f"{HOME / 'lib'}{os.pathsep}{HOME}", "DBLAKE_FAILPOINT": failpoint}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    command = [sys.executable, "-c", STATE, lake.paths.warehouse, master, str(slice_bytes)]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=500, cwd=HOME)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def fill(lake: Lake) -> None:
    for number, schema in enumerate(TABLES):
        lake.schema(schema)
        lake.land(schema, 1, *((10 + n, "c", str(n), {"id": str(n), "a": f"{number} {n}"}) for n in range(40)))


def change(lake: Lake) -> None:
    for schema in TABLES:
        lake.land(schema, 2, (50, "u", "1", {"a": "changed"}), (51, "d", "2", None),
                  (52, "c", "99", {"id": "99", "a": "new"}))


def expected(number: int) -> dict[int, str]:
    rows = {n: f"{number} {n}" for n in range(40)} | {1: "changed", 99: "new"}
    del rows[2]
    return rows


def found(lake: Lake, number: int) -> dict[int, str]:
    rows = lake.state("public", f"t{number}").collect()
    assert len(rows) == len({row["_key"] for row in rows}) == 41
    return {row["id"]: row["a"] for row in rows if not row["_deleted"]}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_state_killed_between_tables_resumes(lake: Lake) -> None:
    fill(lake)
    lake.fold()
    change(lake)
    assert run_process(lake, "local[1]", failpoint="state.table:2") == -signal.SIGKILL
    versions = [DeltaTable(lake.paths.state("public", f"t{n}")).version() for n in range(4)]
    assert sorted(versions) == [1, 1, 2, 2]
    assert read_frontier(lake.paths).batch == 1
    lake.fold()
    assert [found(lake, n) for n in range(4)] == [expected(n) for n in range(4)]
    assert read_frontier(lake.paths).versions == {f"public.t{n}": 2 for n in range(4)}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first, then", [(1 << 30, 0), *with_effort((0, 1 << 30))])
def test_state_on_cluster_equals_state_in_process(lake: Lake, first: int, then: int) -> None:
    """Executors fold events of up to so many bytes at once, and more in key ranges."""
    fill(lake)
    assert run_process(lake, "local-cluster[2,1,1024]", slice_bytes=first) == 0
    change(lake)
    assert run_process(lake, "local-cluster[2,1,1024]", slice_bytes=then) == 0
    assert [found(lake, n) for n in range(4)] == [expected(n) for n in range(4)]


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_state_folded_by_key_ranges_equals_state_at_once(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    session = EngineSession(lambda: spark, engine)
    monkeypatch.setattr("dblake.transform.state.run.SLICE_BYTES", 0)
    monkeypatch.setattr("dblake.transform.state.key_ranges.BUCKET_BYTES", 500)
    fill(lake)
    run_state(session, lake.paths)
    change(lake)
    lake.land(TABLES[0], 3, (60, "t", None, None), (61, "c", "7", {"id": "7", "a": "after"}))
    run_state(session, lake.paths)
    assert [found(lake, n) for n in range(1, 4)] == [expected(n) for n in range(1, 4)]
    assert found(lake, 0) == {7: "after"}


def test_state_task_retries_after_commit_conflict(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer without the lock removes the file that a merge is about to replace."""
    fill(lake)
    lake.fold()
    for number in range(4):
        lake.land(TABLES[number], 2, (45, "c", "99", {"id": "99", "a": "new"}))
    lake.fold()
    change(lake)
    from dblake.transform.state import merge

    upsert, replaced = merge.upsert_parts, list[str]()

    def upsert_with_conflict(path: str, *rest: Any) -> Rewritten:
        result = upsert(path, *rest)
        if path.endswith("t1") and not replaced:
            replaced.append(path)
            lake.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 5")
        return result

    monkeypatch.setattr(merge, "upsert_parts", upsert_with_conflict)
    for number in range(4):
        lake.land(TABLES[number], 3, (70, "u", "1", {"a": "changed"}))
    lake.fold()
    assert replaced
    rows = {row["id"]: row["a"] for row in lake.state("public", "t1").where("NOT _deleted").collect()}
    assert rows[1] == "changed" and 5 not in rows
