"""The DAGs in a real Airflow: one trial as a user starts it, looked at from outside, and what takes no scheduler."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.e2e.test_quickstart import HOME, submit

T, U = "public.t", 'public."U"'
_COUNTS = pa.map_(pa.string(), pa.int64())

# The environment may have to be made first, and Spark starts nine times.
pytestmark = pytest.mark.timeout(1500)

_PATH = f"""
import json, sys, threading
sys.path += ["{HOME}", "{HOME}/lib"]
"""
_LAYOUT = _PATH + """
from pipelines.airflow.dags import dags_from
import airflow.sdk
made = dags_from(sys.argv[1], default_args={"append_env": True, "env": {"X": "1"}, "owner": "ann"})
chosen = {"tables": ["public.t", "public.a b'; touch x"], "keys": "[1]"}
start = made["dblake_shop_dump"].get_task("start")
shell = made["dblake_shop_dump"].get_template_env()
print(json.dumps({
    "dags": {name: [str(getattr(dag.timetable, "expression", None)), dag.catchup, dag.max_active_runs]
             for name, dag in made.items()},
    "lines": [task.bash_command for task in made["dblake_shop"].topological_sort()],
    "task": [start.retries, start.retry_delay.total_seconds(), start.env, start.owner],
    "dump": [start.render_template(start.bash_command, {"params": params}, shell)
             for params in ({"tables": [], "keys": ""}, chosen)],
    "ours": sorted({"pyspark", "deltalake", "pyarrow", "psycopg2", "pymysql", "kazoo"} & set(sys.modules)),
}))
"""
_ENDINGS = _PATH + """
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from pipelines.airflow.operators import JobOperator
found = {}
for name, command in json.loads(sys.argv[1]).items():
    task = JobOperator(task_id="job", bash_command=command)
    if name == "stopped":
        threading.Timer(1, task.on_kill).start()
    try:
        found[name] = task.execute({})
    except AirflowFailException:
        found[name] = "final"
    except AirflowException:
        found[name] = "tried again"
print(json.dumps(found))
"""
_ANNOUNCING = _PATH + """
from airflow.sdk import DAG
from pipelines.airflow.operators import StateOperator
with DAG("announcing", schedule=None) as dag:
    StateOperator(task_id="state", bash_command="true", conf="%s", source="shop")
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
    """Airflow's environment, made if it is not there: pip takes a minute."""
    done = submit("setup", "--airflow")
    assert done.returncode == 0, done.stderr
    return Path(os.environ.get("DBLAKE_AIRFLOW_VENV", HOME / ".venv-airflow")).absolute()


def environment(folder: Path) -> dict[str, str]:
    """An Airflow of its own, which finds our code only by what a DAG file says of it."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return kept | {"AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def in_airflow(venv: Path, folder: Path, code: str, argument: str) -> Any:
    """What a piece of code prints as JSON, run by Airflow's Python."""
    done = subprocess.run(
        [str(venv / "bin/python"), "-c", code, argument], env=environment(folder), cwd=folder, capture_output=True,
        text=True, timeout=240, check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_dags_of_a_configuration(venv: Path, tmp_path: Path) -> None:
    conf, script = HOME / "conf" / "postgres.yaml", HOME / "spark-submit.sh"
    assert in_airflow(venv, tmp_path, _LAYOUT, str(conf)) == {
        "dags": {"dblake_shop": ["*/15 * * * *", False, 1], "dblake_shop_dump": ["None", False, 1]},
        "lines": [
            f"{script} capture --until-caught-up --conf {conf}",
            f"{script} reconcile --conf {conf}",
            f"{script} state --conf {conf}",
            f"{script} check --conf {conf}",
            f"{script} maintain --conf {conf}",
        ],
        "task": [3, 60.0, {"X": "1"}, "ann"],
        "dump": [
            f"{script} dump start --conf {conf} --all",
            f"{script} dump start --conf {conf} --table public.t --table 'public.a b'\"'\"'; touch x' --keys '[1]'",
        ],
        "ours": [],
    }


def test_which_endings_are_tried_again(venv: Path, tmp_path: Path) -> None:
    """Airflow takes 0 for success, also of a job that it has stopped, and 99 for something to be skipped."""
    commands = {
        "done": "echo first; echo last", "passing": "exit 75", "killed": "kill -9 $$", "killed in a shell": "exit 137",
        "stopped": "trap 'exit 0' TERM; sleep 30 & wait", "configuration": "exit 78", "bug": "exit 70",
        "99": "exit 99", "not there": "/no/such/script",
    }
    assert in_airflow(venv, tmp_path, _ENDINGS, json.dumps(commands)) == {
        "done": "last", "passing": "tried again", "killed": "tried again", "killed in a shell": "tried again",
        "stopped": "tried again", "configuration": "final", "bug": "final", "99": "final", "not there": "final",
    }


def test_only_tables_that_have_changed_are_announced(venv: Path, tmp_path: Path) -> None:
    """Between the runs only what state says of its tables changes, and once nothing does."""
    (tmp_path / "shop.yaml").write_text(_CONF)
    file = tmp_path / "airflow" / "dags" / "announcing.py"
    file.parent.mkdir(parents=True)
    file.write_text(_ANNOUNCING.replace("%s", str(tmp_path / "shop.yaml")))
    migrate = [str(venv / "bin/airflow"), "db", "migrate"]
    subprocess.run(migrate, env=environment(tmp_path), check=True, capture_output=True)
    announced = []
    for day, versions in enumerate(({T: 0, U: 0}, {T: 0, U: 0}, {T: 1, U: 0}), start=1):
        columns = {"at": [datetime(2026, 1, day, tzinfo=UTC)], "batch": [day],
                   "versions": pa.array([versions], _COUNTS), "behind": pa.array([{}], _COUNTS)}
        write_deltalake(str(tmp_path / "warehouse/shop/frontier"), pa.table(columns), mode="append")
        assert "success" in in_airflow(venv, tmp_path, file.read_text(), str(day))
        announced.append(noted(tmp_path, "SELECT uri, e.extra FROM asset_event e JOIN asset a ON a.id = asset_id"))
    first = {("dblake://shop/public/t", f'{{"table": "{T}", "version": 0}}'),
             ("dblake://shop/public/~55", f'{{"table": "{U.replace(chr(34), chr(92) + chr(34))}", "version": 0}}')}
    assert announced == [first, first, first | {("dblake://shop/public/t", f'{{"table": "{T}", "version": 1}}')}]


def test_the_trial(venv: Path, tmp_path: Path) -> None:
    """One command, with a scheduler: killed jobs healed, a mistake not tried again, the same interval once more."""
    folder = tmp_path / "trial"
    done = submit("airflow", "--folder", str(folder), seconds=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 7
    assert "✗" not in done.stdout
    orders, customers = (rows(folder, table) for table in ("orders", "customers"))
    assert (len(orders), len(customers)) == (1000, 190)
    assert sorted(row["id"] for row in orders if row["item"] == "changed") == list(range(1, 11))
    tries = noted(
        folder, "SELECT dag_id, task_id, state, try_number FROM task_instance"
        " WHERE dag_id IN ('dblake_broken', 'dblake_shop_dump') AND state != 'upstream_failed'",
    )
    assert tries == {
        ("dblake_broken", "capture", "failed", 1),
        ("dblake_shop_dump", "start", "success", 1), ("dblake_shop_dump", "run", "success", 1),
    }


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """What the state of a table holds."""
    state = DeltaTable(str(folder / "warehouse/shop/state/public" / table))
    return [row for row in state.to_pyarrow_dataset().to_table().to_pylist() if not row["_deleted"]]


def noted(folder: Path, question: str) -> set[tuple[Any, ...]]:
    """What Airflow's own database answers."""
    with closing(sqlite3.connect(folder / "airflow" / "airflow.db")) as notes:
        return set(notes.execute(question))
