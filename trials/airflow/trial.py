"""The DAGs tried in a real Airflow, from nothing: ``./spark-submit.sh airflow``.

A PostgreSQL with two tables, an Airflow with three DAG files, and then what a scheduler has to be trusted with: a
backfill that starts a run, jobs killed by SIGKILL in the middle of it, a DAG that waits for a table, a configuration
with a mistake, and the same interval once more. Promise: ends with 70 unless each of them went as it should, and leaves
the folder with all logs behind then. Of Airflow only its programs and its REST API are used.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from rich.console import Console
from rich.table import Table

from dblake.config import load_config
from dblake.core.errors import ConfigError, DblakeError, ExitCode
from dblake.lake.layout import Paths
from dblake.source.postgres.embedded import EmbeddedPostgres
from dblake.source.postgres.init import run_init
from jobs.cli.frame import run_job, verbose_option
from pipelines.airflow.tasks import SCRIPT
from pipelines.sources import postgres_settings
from pipelines.status import read_status
from trials.airflow.server import Airflow

_HOME = SCRIPT.parent
_RUN_SECONDS = 1200
_SHORT_SECONDS = 180

_CONF = """\
warehouse: ./warehouse
progress: file:./progress
source:
  name: {name}
  type: postgres
  host: 127.0.0.1
  port: {port}
  database: shop
  user: dblake
  password: ${{env:SHOP_PASSWORD}}
  tls: disable
  tables: ["public.*"]
airflow: {{schedule: null, retry_seconds: 1}}
"""
_MISTAKE = "state: {paralel: 2}\n"

_DAGS = f"""\
import sys; sys.path += ["{_HOME}", "{_HOME}/lib"]
from pipelines.airflow.dags import dags_from
"""
# The password comes from a connection of Airflow's. The first try of two jobs dies where it hurts: when its work has
# been committed, and nothing that comes after it has been done.
_SHOP = _DAGS + """
DIES = "{{ {'capture': 'landing.committed', 'state': 'state.merged'}.get(ti.task_id, '') if ti.try_number == 1 }}"
env = {"SHOP_PASSWORD": "{{ conn.shop.password }}", "DBLAKE_FAILPOINT": DIES}
globals().update(dags_from("%s", default_args={"append_env": True, "env": env}))
"""
_BROKEN = _DAGS + """
globals().update(dags_from("%s"))
"""
_READER = _DAGS + """
from airflow.sdk import DAG
from pipelines.airflow.assets import table_asset
from pipelines.airflow.operators import LagSensor
with DAG("reader", schedule=[table_asset("shop", "public.orders")]):
    LagSensor(task_id="fresh", conf="%s", seconds=600)
"""

_TABLES = {
    "public.orders": "CREATE TABLE orders (id int PRIMARY KEY, item text)",
    "public.customers": "CREATE TABLE customers (id int PRIMARY KEY, name text)",
}
_BEFORE = (
    "INSERT INTO orders SELECT n, 'item ' || n FROM generate_series(1, 1000) n",
    "INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 200) n",
)
_SINCE = (
    "UPDATE orders SET item = 'changed' WHERE id <= 10",
    "DELETE FROM customers WHERE id > 190",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was to be shown, whether it was, and by what it is seen."""

    claim: str
    shown: bool
    detail: str


@dataclass
class Trial:
    """One trial, all of whose files are in ``folder``."""

    folder: Path
    venv: Path
    console: Console
    _password: str = field(default_factory=lambda: secrets.token_urlsafe(24), init=False)

    def run(self) -> list[Finding]:
        """Runs it all; returns what was found, in the order in which it is told."""
        with EmbeddedPostgres(self.folder / "postgres") as database:
            self.say("1. A PostgreSQL of its own, prepared for capture")
            conf = self._prepare(database)
            self._change(database, _SINCE)
            self.say("2. An Airflow of its own, with a DAG file of three lines")
            connection = f'{{"conn_type": "generic", "password": "{self._password}"}}'
            airflow = Airflow(self.venv, self.folder / "airflow", {"AIRFLOW_CONN_SHOP": connection})
            self._write_dags(airflow, conf)
            with airflow:
                return self._try(airflow, database)

    def say(self, text: str) -> None:
        """One step of the story."""
        self.console.print(f"[bold]{text}[/bold]")

    def _prepare(self, database: EmbeddedPostgres) -> Path:
        with closing(database.connect()) as admin, admin.cursor() as cur:
            cur.execute("CREATE DATABASE shop")
        self._change(database, (*_TABLES.values(), *_BEFORE))
        conf = self.folder / "shop.yaml"
        conf.write_text(_CONF.format(name="shop", port=database.port), encoding="utf-8")
        os.environ["SHOP_PASSWORD"] = self._password
        run_init(postgres_settings(load_config(conf)), database.user, database.password)
        # From here on only Airflow's connection knows it.
        del os.environ["SHOP_PASSWORD"]
        return conf

    def _write_dags(self, airflow: Airflow, conf: Path) -> None:
        broken = self.folder / "broken.yaml"
        broken.write_text(_CONF.format(name="broken", port=1) + _MISTAKE, encoding="utf-8")
        for name, code, of in (("shop", _SHOP, conf), ("broken", _BROKEN, broken), ("reader", _READER, conf)):
            (airflow.dags / f"{name}.py").write_text(code.replace("%s", str(of)), encoding="utf-8")

    def _try(self, airflow: Airflow, database: EmbeddedPostgres) -> list[Finding]:
        for dag in ("dblake_shop", "dblake_shop_dump", "dblake_broken", "reader"):
            airflow.unpause(dag, _SHORT_SECONDS)
        self.say("3. A backfill of all tables starts a run; capture and state are killed in it once")
        airflow.trigger("dblake_broken")
        airflow.trigger("dblake_shop_dump")
        if airflow.ended("dblake_shop_dump", _SHORT_SECONDS)["state"] == "failed":
            raise DblakeError("the DAG dblake_shop_dump failed", next_step=f"read the logs in {airflow.folder}")
        run = airflow.ended("dblake_shop", _RUN_SECONDS)
        tasks = airflow.tasks(run)
        self._show(tasks)
        broken = airflow.tasks(airflow.ended("dblake_broken", _SHORT_SECONDS))
        reader = airflow.ended("reader", _SHORT_SECONDS) if run["state"] == "success" else {"state": "not started"}
        lake = self._lake()
        findings = [
            _green(run, tasks), _healed(tasks), self._equal(database), _announced(reader), _given_up(broken),
        ]
        self.say("4. The same interval once more, as dag.test() runs it")
        airflow.command("dags", "test", "dblake_shop", run["logical_date"])
        return [*findings, self._same(airflow, run, lake), self._unseen(airflow.folder)]

    def _same(self, airflow: Airflow, run: dict[str, Any], before: dict[str, Any]) -> Finding:
        # Airflow puts the new run into the place of the one it repeats.
        again = airflow.ended("dblake_shop", _SHORT_SECONDS)
        tasks = airflow.tasks(again)
        self._show(tasks)
        repeated = again["logical_date"] == run["logical_date"] and again["dag_run_id"] != run["dag_run_id"]
        done = all(task["state"] == "success" for task in tasks)
        return Finding("The same interval once more changes nothing", repeated and done and self._lake() == before,
                       f"{before['events']} events, state versions {before['versions']}")

    @staticmethod
    def _change(database: EmbeddedPostgres, statements: tuple[str, ...]) -> None:
        with closing(database.connect("shop")) as admin, admin.cursor() as cur:
            for statement in statements:
                cur.execute(statement)

    @property
    def _paths(self) -> Paths:
        return Paths(str(self.folder / "warehouse"), "shop")

    def _lake(self) -> dict[str, Any]:
        """What must not change when nothing has changed at the source; files may, where ``maintain`` sees to them."""
        return {
            "events": _rows(self._paths.events, "count(*)")[0][0],
            "versions": read_status(load_config(self.folder / "shop.yaml"), ask_source=False)["tables"],
            "rows": [_rows(self._paths.state(*table.split(".")), "*", "ORDER BY 1") for table in _TABLES],
        }

    def _equal(self, database: EmbeddedPostgres) -> Finding:
        differ, rows = [], 0
        for table in _TABLES:
            with closing(database.connect("shop")) as admin, admin.cursor() as cur:
                cur.execute(f"SELECT * FROM {table} ORDER BY 1")
                held = cur.fetchall()
            columns = [column.name for column in cur.description]
            found = _rows(self._paths.state(*table.split(".")), ", ".join(columns), "WHERE NOT _deleted ORDER BY 1")
            rows += len(held)
            differ += [table] if found != held else []
        return Finding("State is what the source holds", not differ,
                       f"different: {', '.join(differ)}" if differ else f"{len(_TABLES)} tables, {rows:,} rows")

    def _unseen(self, folder: Path) -> Finding:
        password = self._password.encode()
        files = [file for file in folder.rglob("*") if file.is_file()]
        found = [file.name for file in files if password in file.read_bytes()]
        return Finding("The password is in no log and no note of Airflow's", not found,
                       f"found in {', '.join(found)}" if found else f"{len(files)} files")

    def _show(self, tasks: list[dict[str, Any]]) -> None:
        table = Table("task", "state", "tries", "seconds")
        for task in tasks:
            seconds = task["duration"]
            table.add_row(task["task_id"], task["state"] or "none", str(task["try_number"]),
                          "" if seconds is None else f"{seconds:.1f}")
        self.console.print(table)


def _green(run: dict[str, Any], tasks: list[dict[str, Any]]) -> Finding:
    states = [f"{task['task_id']} {task['state']}" for task in tasks]
    return Finding("The DAG is green", run["state"] == "success", ", ".join(states))


def _healed(tasks: list[dict[str, Any]]) -> Finding:
    tries = {task["task_id"]: task["try_number"] for task in tasks}
    as_planned = {name: 2 if name in ("capture", "state") else 1 for name in tries}
    return Finding("A killed task is healed by a retry", tries == as_planned,
                   ", ".join(f"{name} {'once' if n == 1 else f'{n} times'}" for name, n in tries.items()))


def _announced(reader: dict[str, Any]) -> Finding:
    return Finding("A DAG that waits for a table runs when it has changed", reader["state"] == "success",
                   f"{reader['dag_id']}: {reader['run_type']}" if "dag_id" in reader else reader["state"])


def _given_up(tasks: list[dict[str, Any]]) -> Finding:
    first = next(task for task in tasks if task["task_id"] == "capture")
    return Finding(
        "A configuration with a mistake is not tried again",
        (first["state"], first["try_number"]) == ("failed", 1) and first["max_tries"] > 0,
        f"capture {first['state']}, try {first['try_number']} of {first['max_tries'] + 1}",
    )


def _rows(path: str, columns: str, rest: str = "") -> list[tuple[Any, ...]]:
    answer = QueryBuilder().register("t", DeltaTable(path)).execute(f"SELECT {columns} FROM t {rest}").read_all()
    return [tuple(row.values()) for row in pa.table(answer).to_pylist()]


@click.command("airflow")
@verbose_option
@click.option("--folder", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Where all of it is made, to be looked at later; else a temporary folder that goes again.")
def airflow(folder: Path | None) -> int:
    """Try dblake's DAGs in a real Airflow, on this machine, on a database of its own.

    Airflow is installed, once, into .venv-airflow beside this script, or DBLAKE_AIRFLOW_VENV.
    """
    console = Console()
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", next_step="name a folder that is not there yet")
    place = (folder or Path(tempfile.mkdtemp(prefix="dblake-airflow-"))).absolute()
    place.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    keep = True
    try:
        findings = Trial(place, Path(os.environ["DBLAKE_AIRFLOW_VENV"]).absolute(), console).run()
        shown = all(finding.shown for finding in findings)
        keep = folder is not None or not shown
    finally:
        if keep:
            console.print(f"Logs and tables are in {place}", soft_wrap=True)
        else:
            shutil.rmtree(place, ignore_errors=True)
    table = Table("", "what", "seen by", title=f"{time.monotonic() - began:.0f} seconds")
    for finding in findings:
        table.add_row("[green]✓[/green]" if finding.shown else "[red]✗[/red]", finding.claim, finding.detail)
    console.print(table)
    return ExitCode.DONE if shown else ExitCode.BUG


if __name__ == "__main__":
    run_job(airflow)
