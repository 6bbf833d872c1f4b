"""The package ``dblake-airflow`` as a wheel beside a real Airflow: provider, links, waiting, mapped sources, pools."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dblake
from tests.e2e.test_airflow import airflow_venv, environment, query_airflow
from tests.e2e.test_quickstart import HOME
from tests.support.wheel import build_wheel, pack_wheel

# Airflow's environment may have to be installed first.
pytestmark = pytest.mark.timeout(900)

_CONF = """
warehouse: ./warehouse
progress: file:./progress
source: {name: %s, type: postgres, host: h, database: d, user: u, password: "${env:NONE}", tables: ["public.*"]}
airflow: {pool_slots: 2, report_url: "http://reports.example/%s"}
"""
_JOB = """#!/bin/bash
# A dblake whose status is a file beside it; each call is recorded.
echo "$@" >> {folder}/calls
if [ "$1" = status ]; then
    case "$*" in *north*) cat {folder}/north.json ;; *) cat {folder}/south.json ;; esac
    exit
fi
echo "position 1/700"
"""
_SENSORS = """
import json, sys
from airflow.sdk import DAG
from dblake_airflow.sensors import DumpSensor, LagSensor, PointSensor
from dblake_airflow.operators import JobOperator
common = {"conf": "%(folder)s/north.yaml", "command": "%(folder)s/dblake", "deferrable": True, "poke_interval": 0.2}
with DAG("waiting", schedule=None) as dag:
    captured = JobOperator(task_id="captured", conf=common["conf"], command=common["command"], job=("capture",))
    point = PointSensor(task_id="point", point="{{ ti.xcom_pull(task_ids='captured').split()[1] }}", **common)
    lag = LagSensor(task_id="lag", seconds=60, stage="events", **common)
    dump = DumpSensor(task_id="dump", dump="d1", **common)
    captured >> [point, lag, dump]
if __name__ == "__main__":
    run = dag.test()
    print(json.dumps({"run": str(run.state), "tasks": {ti.task_id: str(ti.state) for ti in run.get_task_instances()}}))
"""
_FLEET = """
import json, sys
from dblake_airflow.fleet import fleet_from
dag = fleet_from("fleet", "%(folder)s/*.yaml", schedule=None, command="%(folder)s/dblake")
if __name__ == "__main__":
    run = dag.test()
    found = sorted((ti.task_id, ti.map_index, str(ti.rendered_map_index)) for ti in run.get_task_instances())
    print(json.dumps({"run": str(run.state), "tasks": found}))
"""
_DAGS = """
import json
from dblake_airflow.dags import dags_from
dags = dags_from("%(folder)s/north.yaml", command="%(folder)s/dblake")
if __name__ == "__main__":
    tasks = dags["dblake_north"].tasks
    [pool] = {task.pool for task in tasks}
    print(json.dumps([[pool, [task.bash_command for task in tasks if task.task_id == "run"]]]))
"""
_TRIGGER = """
import asyncio, json, sys
from dblake_airflow.triggers import StatusTrigger
async def first(trigger):
    async for event in trigger.run():
        return event.payload
results = {}
for name, condition in json.loads(sys.argv[1]).items():
    path, arguments = StatusTrigger("north.yaml", condition, 0.1, {}, "./dblake").serialize()
    assert path == "dblake_airflow.triggers.StatusTrigger"
    try:
        results[name] = asyncio.run(asyncio.wait_for(first(StatusTrigger(**arguments)), 1.5))
    except asyncio.TimeoutError:
        results[name] = "waits"
print(json.dumps(results))
"""
_CANCELLED = """
import asyncio, json, os
from dblake_airflow.triggers import StatusTrigger
async def cancel():
    waiting = asyncio.ensure_future(anext(StatusTrigger("north.yaml", {"dump": "d1"}, 1, {}, "./dblake").run()))
    while not os.path.exists("children"):
        await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
asyncio.run(cancel())
[child] = open("children").read().split()
try:
    state = open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0]
except OSError:
    state = "Z"
print(json.dumps(state))
"""
_NO_SOURCES = """
import json
from airflow.sdk.exceptions import AirflowFailException
from dblake_airflow.fleet import fleet_from
sources = fleet_from("fleet", "/nonexistent/*.yaml", schedule=None).get_task("sources")
try:
    print(json.dumps(sources.python_callable()))
except AirflowFailException as error:
    print(json.dumps(str(error)))
"""


class Packaged:
    """Airflow's environment, with the wheels of dblake and of its Airflow package on the path, and two sources."""

    def __init__(self, venv: Path, wheels: Path, folder: Path) -> None:
        self.venv, self.folder = venv, folder
        self.variables = environment(folder) | {"PYTHONPATH": str(wheels)}
        for name in ("north", "south"):
            (folder / f"{name}.yaml").write_text(_CONF % (name, name))
            self.write_status(name, "1/650", {"public.t": 0})
        (folder / "dblake").write_text(_JOB.format(folder=folder))
        (folder / "dblake").chmod(0o755)

    def write_status(self, source: str, position: str, tables: dict[str, int], *, dump: str = "done") -> None:
        """Write what ``status`` of a source prints."""
        stage = {"position": position, "lag_seconds": 12.0}
        (self.folder / f"{source}.json").write_text(json.dumps({
            "source": source, "tables": tables, "stages": dict.fromkeys(("landing", "events", "state"), stage),
            "dumps": [{"id": "d1", "table": "public.t", "state": dump}],
        }))

    def airflow(self, *arguments: str) -> str:
        """Run a command of Airflow's and return what it prints."""
        done = subprocess.run(
            [str(self.venv / "bin/airflow"), *arguments], env=self.variables, cwd=self.folder, capture_output=True,
            text=True, timeout=240, check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, code: str, *arguments: str) -> Any:
        """Run code in Airflow's Python, as a DAG file, and return the JSON it prints last."""
        file = self.folder / "airflow" / "dags" / "code.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
        done = subprocess.run(
            [str(self.venv / "bin/python"), str(file), *arguments], env=self.variables, cwd=self.folder,
            capture_output=True, text=True, timeout=240, check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both wheels from copies, and install them into a folder of their own, without what they require."""
    folder = tmp_path_factory.mktemp("wheels")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(HOME / "integrations/airflow", folder / "airflow", ignore=ignored)
    built = [pack_wheel(folder / "airflow"), build_wheel(folder / "dblake")]
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-deps", "--target", str(target)]
    subprocess.run([*install, *map(str, built)], check=True)
    return target


@pytest.fixture
def packaged(wheels: Path, tmp_path: Path) -> Packaged:
    return Packaged(airflow_venv(), wheels, tmp_path)


@pytest.mark.slow
def test_airflow_lists_the_provider_and_pools(packaged: Packaged) -> None:
    """Airflow finds the entry point and accepts its metadata; it imports what ``pools`` prints."""
    listed = json.loads("[" + packaged.airflow("providers", "list", "--output", "json").partition("[")[2])
    assert [entry["version"] for entry in listed if entry["package_name"] == "dblake-airflow"] == [dblake.__version__]
    packaged.airflow("db", "migrate")
    files = [str(packaged.folder / f"{name}.yaml") for name in ("north", "south")]
    pools = subprocess.run(
        [str(packaged.venv / "bin/python"), "-m", "dblake_airflow", "pools", *files], env=packaged.variables,
        capture_output=True, text=True, check=True,
    ).stdout
    (packaged.folder / "pools.json").write_text(pools)
    packaged.airflow("pools", "import", str(packaged.folder / "pools.json"))
    found = query_airflow(packaged.folder, "SELECT pool, slots FROM slot_pool WHERE pool != 'default_pool'")
    assert found == {("dblake_north", 2), ("dblake_south", 2)}
    [shown] = packaged.python(_DAGS % {"folder": packaged.folder})
    assert shown == ["dblake_north", [f"{packaged.folder}/dblake run --conf {packaged.folder}/north.yaml"]]


def test_trigger_fires_for_its_condition(packaged: Packaged) -> None:
    """A point, a lag and a dump; one that can no longer come is an error, and not waited for."""
    conditions = {
        "reached": {"stage": "state", "point": "1/650"}, "not reached": {"stage": "state", "point": "1/651"},
        "earlier incarnation": {"stage": "state", "point": "1/649/9"}, "later one": {"stage": "state", "point": "2/1"},
        "fresh": {"stage": "events", "seconds": 12}, "late": {"stage": "events", "seconds": 11},
        "dumped": {"dump": "d1"}, "no dump": {"dump": "d2"},
    }
    met = {"error": None}
    assert packaged.python(_TRIGGER, json.dumps(conditions)) == {
        "reached": met, "not reached": "waits", "earlier incarnation": met, "later one": "waits", "fresh": met,
        "late": "waits", "dumped": met, "no dump": {"error": "there is no dump d2"},
    }
    packaged.write_status("north", "1/650", {}, dump="failed")
    assert packaged.python(_TRIGGER, json.dumps({"dumped": {"dump": "d1"}})) == {
        "dumped": {"error": "dump d1 has ended without public.t: failed"},
    }


def test_trigger_that_is_cancelled_ends_its_status(packaged: Packaged) -> None:
    """The processes that the command has started end as well."""
    job = "#!/bin/bash\nsleep 60 &\necho $! > started && mv started children\nwait\n"
    (packaged.folder / "dblake").write_text(job)
    assert packaged.python(_CANCELLED) == "Z"


def test_fleet_without_a_source_fails(packaged: Packaged) -> None:
    assert packaged.python(_NO_SOURCES) == "no file matches /nonexistent/*.yaml; correct the patterns"


@pytest.mark.slow
def test_sensors_defer_until_status_shows_it(packaged: Packaged) -> None:
    """The sensors wait in the triggerer; a task's link is the page of its source's report."""
    packaged.airflow("db", "migrate")
    packaged.write_status("north", "1/650", {}, dump="running")

    def catch_up() -> None:
        calls = packaged.folder / "calls"
        # The first reading of each sensor is its own; the next ones are the triggerer's.
        while not calls.exists() or calls.read_text().count("status") < 5:
            time.sleep(0.1)
        packaged.write_status("north", "1/701", {})

    threading.Thread(target=catch_up, daemon=True).start()
    found = packaged.python(_SENSORS % {"folder": packaged.folder})
    assert found == {"run": "success", "tasks": dict.fromkeys(("captured", "point", "lag", "dump"), "success")}
    links = query_airflow(packaged.folder, "SELECT DISTINCT value FROM xcom WHERE key = '_link_ReportLink'")
    assert links == {('"http://reports.example/north"',)}


@pytest.mark.slow
def test_fleet_maps_over_files_and_announces_tables(packaged: Packaged) -> None:
    """Each source has a chain of its own; a file that is added is part of the next run."""
    packaged.airflow("db", "migrate")
    assert packaged.python(_FLEET % {"folder": packaged.folder}) == {"run": "success", "tasks": [
        ["source.capture", 0, "north.yaml"], ["source.capture", 1, "south.yaml"], ["source.run", 0, "north.yaml"],
        ["source.run", 1, "south.yaml"], ["sources", -1, "None"],
    ]}
    calls = (packaged.folder / "calls").read_text().splitlines()
    assert sorted(call for call in calls if call.startswith("capture")) == [
        f"capture --until-caught-up --conf {packaged.folder}/{name}.yaml" for name in ("north", "south")
    ]
    statement = "SELECT uri, e.extra FROM asset_event e JOIN asset a ON a.id = asset_id"
    announced = {(f"dblake://{name}/public/t", '{"table": "public.t", "version": 0}') for name in ("north", "south")}
    assert query_airflow(packaged.folder, statement) == announced
    # Its index was north's before.
    shutil.copy(packaged.folder / "north.yaml", packaged.folder / "a.yaml")
    packaged.write_status("south", "1/650", {"public.t": 1})
    assert packaged.python(_FLEET % {"folder": packaged.folder})["run"] == "success"
    newest = ("dblake://south/public/t", '{"table": "public.t", "version": 1}')
    assert newest in query_airflow(packaged.folder, statement)
