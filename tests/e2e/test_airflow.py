"""The DAGs in a real Airflow: the trial as a user starts it, and what can be tested without a scheduler."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from dblake.base.core.position import Position
from dblake.base.lake.frontier import Frontier, append_frontier
from dblake.base.lake.layout import Paths
from tests.e2e.test_quickstart import HOME, submit

T, U = "public.t", 'public."U"'

# Airflow's environment may have to be installed first, and the trial runs every job.
pytestmark = pytest.mark.timeout(1500)

_PATH = f"""
import json, sys, threading
sys.path += ["{HOME}/integrations/airflow", "{HOME}/lib"]
"""
_DAGS = _PATH + """
from dblake_airflow.dags import dags_from
import airflow.sdk
dags = dags_from(sys.argv[1], default_args={"append_env": True, "env": {"X": "1"}, "owner": "ann"})
selection = {"tables": ["public.t", "public.a b'; touch x"], "keys": "[1]"}
start = dags["dblake_shop_dump"].get_task("start")
shell = dags["dblake_shop_dump"].get_template_env()
print(json.dumps({
    "dags": {name: [str(getattr(dag.timetable, "expression", None)), dag.catchup, dag.max_active_runs]
             for name, dag in dags.items()},
    "lines": [getattr(task, "bash_command", task.task_id) for task in dags["dblake_shop"].topological_sort()],
    "task": [start.retries, start.retry_delay.total_seconds(), start.env, start.owner],
    "dump": [start.render_template(start.bash_command, {"params": params}, shell)
             for params in ({"tables": [], "keys": ""}, selection)],
    "after": {task.task_id: [sorted(task.upstream_task_ids), task.trigger_rule] for task in dags["dblake_shop"].tasks},
    "imported": sorted({"pyspark", "deltalake", "pyarrow", "psycopg2", "pymysql", "kazoo"} & set(sys.modules)),
}))
"""
_EXIT_CODES = _PATH + """
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from dblake_airflow.operators import JobOperator
results = {}
for name, command in json.loads(sys.argv[1]).items():
    task = JobOperator(task_id="job", bash_command=command)
    if name == "stopped":
        threading.Timer(1, task.on_kill).start()
    try:
        results[name] = task.execute({})
    except AirflowFailException:
        results[name] = "final"
    except AirflowException:
        results[name] = "retried"
print(json.dumps(results))
"""
_ANNOUNCING = _PATH + """
from airflow.sdk import DAG
from dblake_airflow.operators import RunOperator
with DAG("announcing", schedule=None) as dag:
    RunOperator(task_id="run", bash_command="true", conf="%s", source="shop")
if __name__ == "__main__":
    from datetime import datetime, UTC
    print(json.dumps(str(dag.test(logical_date=datetime(2026, 1, int(sys.argv[1]), tzinfo=UTC)).state)))
"""
_CONF = """
warehouse: ./warehouse
progress: file:./progress
source: {name: shop, type: postgres, host: h, database: d, user: u, password: "${env:NONE}", tables: ["public.*"]}
"""


@pytest.fixture(scope="module")
def venv() -> Path:
    return airflow_venv()


def airflow_venv() -> Path:
    """Return Airflow's environment, installed if it is missing: pip takes a minute."""
    done = submit("setup", "--airflow")
    assert done.returncode == 0, done.stderr
    return Path(os.environ.get("DBLAKE_AIRFLOW_VENV", HOME / ".venv-airflow")).absolute()


def environment(folder: Path) -> dict[str, str]:
    """Environment variables of an Airflow that finds our code only through its DAG files."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return inherited | {"AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def run_in_airflow(
    venv: Path, folder: Path, code: str, argument: str, variables: Mapping[str, str] | None = None
) -> Any:
    """Run code in Airflow's Python and return the JSON it prints."""
    done = subprocess.run(
        [str(venv / "bin/python"), "-c", code, argument], env=variables or environment(folder), cwd=folder,
        capture_output=True, text=True, timeout=240, check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_dags_match_configuration(venv: Path, tmp_path: Path) -> None:
    conf, script = HOME / "conf" / "postgres.yaml", HOME / "spark-submit.sh"
    assert run_in_airflow(venv, tmp_path, _DAGS, str(conf)) == {
        "dags": {"dblake_shop": ["*/15 * * * *", False, 1], "dblake_shop_dump": ["None", False, 1]},
        "lines": [
            f"{script} capture --until-caught-up --conf {conf}",
            f"{script} run --conf {conf}",
        ],
        "after": {"capture": [[], "all_success"], "run": [["capture"], "all_success"]},
        "task": [3, 60.0, {"X": "1"}, "ann"],
        "dump": [
            f"{script} dump start --conf {conf} --all",
            f"{script} dump start --conf {conf} --table public.t --table 'public.a b'\"'\"'; touch x' --keys '[1]'",
        ],
        "imported": [],
    }


@pytest.mark.slow
def test_dag_outputs_are_independent_tasks(venv: Path, tmp_path: Path) -> None:
    """Outputs run after a failed run as well, and the last task fails for any failure before it."""
    (tmp_path / "shop.yaml").write_text(_CONF + "outputs: {archive: {type: jsonl, path: ./out}, bus: {type: wrong}}\n")
    found = run_in_airflow(venv, tmp_path, _DAGS, str(tmp_path / "shop.yaml"))
    assert found["after"] == {
        "capture": [[], "all_success"], "run": [["capture"], "all_success"],
        "subscribe_archive": [["run"], "all_done"], "subscribe_bus": [["run"], "all_done"],
        "done": [["run", "subscribe_archive", "subscribe_bus"], "all_success"],
    }
    command = f"{HOME}/spark-submit.sh subscribe --output bus --until-caught-up --conf {tmp_path}/shop.yaml"
    assert command in found["lines"]
    (tmp_path / "shop.yaml").write_text(_CONF + "outputs: {archive: {}}\nairflow: {outputs: supervised}\n")
    assert run_in_airflow(venv, tmp_path, _DAGS, str(tmp_path / "shop.yaml"))["after"].keys() == {"capture", "run"}


def test_job_operator_retries_75_and_kills(venv: Path, tmp_path: Path) -> None:
    """Airflow itself treats 0 as success, even of a job it stopped, and 99 as skipped."""
    commands = {
        "done": "echo first; echo last", "passing": "exit 75", "killed": "kill -9 $$", "killed in a shell": "exit 137",
        "stopped": "trap 'exit 0' TERM; sleep 30 & wait", "configuration": "exit 78", "bug": "exit 70",
        "99": "exit 99", "missing": "/no/such/script",
    }
    assert run_in_airflow(venv, tmp_path, _EXIT_CODES, json.dumps(commands)) == {
        "done": "last", "passing": "retried", "killed": "retried", "killed in a shell": "retried",
        "stopped": "retried", "configuration": "final", "bug": "final", "99": "final", "missing": "final",
    }


@pytest.mark.slow
def test_run_operator_announces_changed_tables(venv: Path, tmp_path: Path) -> None:
    """Between the runs only the versions in frontier change, and once nothing does."""
    (tmp_path / "shop.yaml").write_text(_CONF)
    file = tmp_path / "airflow" / "dags" / "announcing.py"
    file.parent.mkdir(parents=True)
    file.write_text(_ANNOUNCING.replace("%s", str(tmp_path / "shop.yaml")))
    migrate = [str(venv / "bin/airflow"), "db", "migrate"]
    subprocess.run(migrate, env=environment(tmp_path), check=True, capture_output=True)
    announced = []
    for day, versions in enumerate(({T: 0, U: 0}, {T: 0, U: 0}, {T: 1, U: 0}), start=1):
        append_frontier(Paths(str(tmp_path / "warehouse"), "shop"), Frontier(day, Position(1, day, 0), versions))
        assert "success" in run_in_airflow(venv, tmp_path, file.read_text(), str(day))
        statement = "SELECT uri, e.extra FROM asset_event e JOIN asset a ON a.id = asset_id"
        announced.append(query_airflow(tmp_path, statement))
    first = {("dblake://shop/public/t", f'{{"table": "{T}", "version": 0}}'),
             ("dblake://shop/public/~55", f'{{"table": "{U.replace(chr(34), chr(92) + chr(34))}", "version": 0}}')}
    assert announced == [first, first, first | {("dblake://shop/public/t", f'{{"table": "{T}", "version": 1}}')}]


@pytest.mark.slow
def test_trial_meets_all_expectations(venv: Path, tmp_path: Path) -> None:
    """One command, with a scheduler: killed jobs retried, a fault not retried, an interval repeated."""
    folder = tmp_path / "trial"
    done = submit("airflow", "--folder", str(folder), seconds=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 8
    assert "✗" not in done.stdout
    orders, customers = (rows(folder, table) for table in ("orders", "customers"))
    assert (len(orders), len(customers)) == (1000, 190)
    assert sorted(row["id"] for row in orders if row["item"] == "changed") == list(range(1, 11))
    tries = query_airflow(
        folder, "SELECT dag_id, task_id, state, try_number FROM task_instance"
        " WHERE dag_id IN ('dblake_broken', 'dblake_shop_dump') AND state != 'upstream_failed'",
    )
    assert tries == {
        ("dblake_broken", "capture", "failed", 1), ("dblake_broken", "subscribe_archive", "failed", 1),
        ("dblake_shop_dump", "start", "success", 1), ("dblake_shop_dump", "run", "success", 1),
    }


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """Return the live rows of a state table."""
    state = DeltaTable(str(folder / "warehouse/shop/state/public" / table))
    return [row for row in state.to_pyarrow_dataset().to_table().to_pylist() if not row["_deleted"]]


def query_airflow(folder: Path, statement: str) -> set[tuple[Any, ...]]:
    """Return the rows of a query on Airflow's metadata database."""
    with closing(sqlite3.connect(folder / "airflow" / "airflow.db")) as database:
        return set(database.execute(statement))
