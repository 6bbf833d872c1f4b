"""The DAGs in a real Airflow: one trial as a user starts it, looked at from outside, and what takes no scheduler."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.e2e.test_quickstart import HOME, submit

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


@pytest.fixture(scope="module")
def venv() -> Path:
    """Airflow's environment, made if it is not there: pip takes a minute."""
    done = submit("setup", "--airflow")
    assert done.returncode == 0, done.stderr
    return Path(os.environ.get("DBLAKE_AIRFLOW_VENV", HOME / ".venv-airflow"))


def in_airflow(venv: Path, folder: Path, code: str, argument: str) -> Any:
    """What a piece of code prints as JSON, run by Airflow's Python."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(venv / "bin/python"), "-c", code, argument], env=kept | {"AIRFLOW_HOME": str(folder / "airflow")},
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
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
    assert tried(folder) == {
        ("dblake_broken", "capture", "failed", 1),
        ("dblake_shop_dump", "start", "success", 1), ("dblake_shop_dump", "run", "success", 1),
    }


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """What the state of a table holds."""
    state = DeltaTable(str(folder / "warehouse/shop/state/public" / table))
    return [row for row in state.to_pyarrow_dataset().to_table().to_pylist() if not row["_deleted"]]


def tried(folder: Path) -> set[tuple[str, str, str, int]]:
    """What Airflow itself notes of tasks that have run once at most."""
    with closing(sqlite3.connect(folder / "airflow" / "airflow.db")) as notes:
        return set(notes.execute(
            "SELECT dag_id, task_id, state, try_number FROM task_instance"
            " WHERE dag_id IN ('dblake_broken', 'dblake_shop_dump') AND start_date IS NOT NULL"
        ))
