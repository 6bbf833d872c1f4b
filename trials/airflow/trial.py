"""Try the DAGs in a real Airflow: ``./spark-submit.sh airflow``.

Starts a PostgreSQL server with two tables and an Airflow with three DAG files, then verifies a backfill that triggers a
run, jobs killed by SIGKILL and retried, a DAG scheduled by a table, a faulty configuration, and a repeated interval.
Guarantee: exits 70 unless every expectation is met, and then leaves the folder with all logs. Uses only Airflow's
programs and REST API.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from rich.console import Console
from rich.table import Table

from dblake.base.core.errors import DblakeError
from dblake.base.lake.layout import Paths
from dblake.config import load_config
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init
from jobs.cli.frame import run_job, verbose_option
from pipelines.sources import postgres_settings
from pipelines.status import read_status
from trials.airflow.server import Airflow
from trials.frame import SCRIPT, Expectation, run_trial

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
outputs: {{archive: {{type: jsonl, path: "./archive/{{table}}.jsonl"}}}}
"""
_FAULT = "state: {paralel: 2}\n"

_DAGS = f"""\
import sys; sys.path += ["{_HOME}/integrations/airflow", "{_HOME}/lib"]
from dblake_airflow.dags import dags_from
"""
# The password comes from an Airflow connection. The first try of two jobs is killed right after its commit, before
# anything that follows the commit.
_SHOP_DAG = _DAGS + """
FAILPOINT = "{{ {'capture': 'landing.committed', 'run': 'state.merged'}.get(ti.task_id, '') if ti.try_number == 1 }}"
env = {"SHOP_PASSWORD": "{{ conn.shop.password }}", "DBLAKE_FAILPOINT": FAILPOINT}
globals().update(dags_from("%s", default_args={"append_env": True, "env": env}))
"""
_BROKEN_DAG = _DAGS + """
globals().update(dags_from("%s"))
"""
_READER_DAG = _DAGS + """
from airflow.sdk import DAG
from dblake_airflow.assets import table_asset
from dblake_airflow.sensors import LagSensor
with DAG("reader", schedule=[table_asset("shop", "public.orders")]):
    LagSensor(task_id="fresh", conf="%s", seconds=600)
"""

_TABLES = {
    "public.orders": "CREATE TABLE orders (id int PRIMARY KEY, item text)",
    "public.customers": "CREATE TABLE customers (id int PRIMARY KEY, name text)",
}
_INITIAL_ROWS = (
    "INSERT INTO orders SELECT n, 'item ' || n FROM generate_series(1, 1000) n",
    "INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 200) n",
)
_CHANGES = (
    "UPDATE orders SET item = 'changed' WHERE id <= 10",
    "DELETE FROM customers WHERE id > 190",
)


@dataclass
class Trial:
    """One trial; all its files are in ``folder``."""

    folder: Path
    venv: Path
    console: Console
    _password: str = field(default_factory=lambda: secrets.token_urlsafe(24), init=False)

    def run(self) -> list[Expectation]:
        """Run the trial and return its expectations in order."""
        with EmbeddedPostgres(self.folder / "postgres") as database:
            self._announce("1. Start a PostgreSQL server and prepare it for capture")
            conf = self._prepare(database)
            self._change(database, _CHANGES)
            self._announce("2. Start an Airflow with a DAG file of three lines")
            connection = f'{{"conn_type": "generic", "password": "{self._password}"}}'
            airflow = Airflow(self.venv, self.folder / "airflow", {"AIRFLOW_CONN_SHOP": connection})
            self._write_dags(airflow, conf)
            with airflow:
                return self._try(airflow, database)

    def _announce(self, text: str) -> None:
        self.console.print(f"[bold]{text}[/bold]")

    def _prepare(self, database: EmbeddedPostgres) -> Path:
        with closing(database.connect()) as admin, admin.cursor() as cur:
            cur.execute("CREATE DATABASE shop")
        self._change(database, (*_TABLES.values(), *_INITIAL_ROWS))
        conf = self.folder / "shop.yaml"
        conf.write_text(_CONF.format(name="shop", port=database.port), encoding="utf-8")
        os.environ["SHOP_PASSWORD"] = self._password
        run_init(postgres_settings(load_config(conf)), database.user, database.password)
        # From here on only Airflow's connection holds it.
        del os.environ["SHOP_PASSWORD"]
        return conf

    def _write_dags(self, airflow: Airflow, conf: Path) -> None:
        broken = self.folder / "broken.yaml"
        broken.write_text(_CONF.format(name="broken", port=1) + _FAULT, encoding="utf-8")
        files = (("shop", _SHOP_DAG, conf), ("broken", _BROKEN_DAG, broken), ("reader", _READER_DAG, conf))
        for name, code, file in files:
            (airflow.dags / f"{name}.py").write_text(code.replace("%s", str(file)), encoding="utf-8")

    def _try(self, airflow: Airflow, database: EmbeddedPostgres) -> list[Expectation]:
        for dag in ("dblake_shop", "dblake_shop_dump", "dblake_broken", "reader"):
            airflow.unpause(dag, _SHORT_SECONDS)
        self._announce("3. Backfill all tables; capture and run are killed once in the run")
        airflow.trigger("dblake_broken")
        airflow.trigger("dblake_shop_dump")
        if airflow.wait_for_run("dblake_shop_dump", _SHORT_SECONDS)["state"] == "failed":
            raise DblakeError("the DAG dblake_shop_dump failed", next_step=f"read the logs in {airflow.folder}")
        run = airflow.wait_for_run("dblake_shop", _RUN_SECONDS)
        tasks = airflow.tasks(run)
        self._show(tasks)
        broken = airflow.tasks(airflow.wait_for_run("dblake_broken", _SHORT_SECONDS))
        reader = {"state": "not started"}
        if run["state"] == "success":
            reader = airflow.wait_for_run("reader", _SHORT_SECONDS)
        snapshot = self._snapshot()
        expectations = [
            _expect_success(run, tasks), _expect_retries(tasks), self._expect_equal(database), self._expect_delivered(),
            _expect_triggered(reader), _expect_no_retry(broken),
        ]
        self._announce("4. Repeat the interval with dag.test()")
        # It would take the run that the command repeats for its own, and replace the run's tasks.
        airflow.stop_scheduler()
        airflow.command("dags", "test", "dblake_shop", run["logical_date"])
        return [*expectations, self._expect_idempotent(airflow, run, snapshot), self._expect_no_leak(airflow.folder)]

    def _expect_idempotent(self, airflow: Airflow, run: dict[str, Any], snapshot: dict[str, Any]) -> Expectation:
        # Airflow replaces the run that it repeats.
        repeated = airflow.wait_for_run("dblake_shop", _SHORT_SECONDS)
        tasks = airflow.tasks(repeated)
        self._show(tasks)
        is_repeat = repeated["logical_date"] == run["logical_date"] and repeated["dag_run_id"] != run["dag_run_id"]
        succeeded = all(task["state"] == "success" for task in tasks)
        is_unchanged = self._snapshot() == snapshot
        return Expectation("A repeated interval changes nothing", is_repeat and succeeded and is_unchanged,
                           f"{snapshot['events']} events, state versions {snapshot['versions']}")

    @staticmethod
    def _change(database: EmbeddedPostgres, statements: tuple[str, ...]) -> None:
        with closing(database.connect("shop")) as admin, admin.cursor() as cur:
            for statement in statements:
                cur.execute(statement)

    @property
    def _paths(self) -> Paths:
        return Paths(str(self.folder / "warehouse"), "shop")

    def _snapshot(self) -> dict[str, Any]:
        """Return what must not change while the source does not change; ``maintain`` may still rewrite files."""
        return {
            "events": _rows(self._paths.events, "count(*)")[0][0],
            "versions": read_status(load_config(self.folder / "shop.yaml"), ask_source=False)["tables"],
            "rows": [_rows(self._paths.state(*table.split(".")), "*", "ORDER BY 1") for table in _TABLES],
        }

    def _expect_equal(self, database: EmbeddedPostgres) -> Expectation:
        differ, rows = [], 0
        for table in _TABLES:
            with closing(database.connect("shop")) as admin, admin.cursor() as cur:
                cur.execute(f"SELECT * FROM {table} ORDER BY 1")
                expected = cur.fetchall()
            columns = [column.name for column in cur.description]
            actual = _rows(self._paths.state(*table.split(".")), ", ".join(columns), "WHERE NOT _deleted ORDER BY 1")
            rows += len(expected)
            differ += [table] if actual != expected else []
        return Expectation("State equals the source", not differ,
                           f"different: {', '.join(differ)}" if differ else f"{len(_TABLES)} tables, {rows:,} rows")

    def _expect_delivered(self) -> Expectation:
        differ = []
        for table in _TABLES:
            file, rows = self.folder / "archive" / f"{table}.jsonl", dict[int, dict[str, Any] | None]()
            for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
                entry = json.loads(line)
                if "control" not in entry:
                    rows[entry["key"]["id"]] = entry["after"]
            delivered = sorted(tuple(row.values()) for row in rows.values() if row is not None)
            names = "id, item" if table == "public.orders" else "id, name"
            state = _rows(self._paths.state(*table.split(".")), names, "WHERE NOT _deleted ORDER BY id")
            differ += [table] if delivered != state else []
        return Expectation("The output has delivered the same rows", not differ,
                           f"different: {', '.join(differ)}" if differ else f"{len(_TABLES)} tables")

    def _expect_no_leak(self, folder: Path) -> Expectation:
        password = self._password.encode()
        files = [file for file in folder.rglob("*") if file.is_file()]
        leaks = [file.name for file in files if password in file.read_bytes()]
        return Expectation("The password is in no log and no database of Airflow", not leaks,
                           f"in {', '.join(leaks)}" if leaks else f"{len(files)} files")

    def _show(self, tasks: list[dict[str, Any]]) -> None:
        table = Table("task", "state", "tries", "seconds")
        for task in tasks:
            seconds = task["duration"]
            table.add_row(task["task_id"], task["state"] or "none", str(task["try_number"]),
                          "" if seconds is None else f"{seconds:.1f}")
        self.console.print(table)


def _expect_success(run: dict[str, Any], tasks: list[dict[str, Any]]) -> Expectation:
    states = [f"{task['task_id']} {task['state']}" for task in tasks]
    return Expectation("The DAG succeeds", run["state"] == "success", ", ".join(states))


def _expect_retries(tasks: list[dict[str, Any]]) -> Expectation:
    tries = {task["task_id"]: task["try_number"] for task in tasks}
    planned = {name: 2 if name in ("capture", "run") else 1 for name in tries}
    return Expectation("A retry completes a killed task", tries == planned,
                       ", ".join(f"{name} {'1 try' if n == 1 else f'{n} tries'}" for name, n in tries.items()))


def _expect_triggered(reader: dict[str, Any]) -> Expectation:
    return Expectation("A DAG scheduled by a table runs when the table has changed", reader["state"] == "success",
                       f"{reader['dag_id']}: {reader['run_type']}" if "dag_id" in reader else reader["state"])


def _expect_no_retry(tasks: list[dict[str, Any]]) -> Expectation:
    first = next(task for task in tasks if task["task_id"] == "capture")
    return Expectation(
        "A faulty configuration is not retried",
        (first["state"], first["try_number"]) == ("failed", 1) and first["max_tries"] > 0,
        f"capture {first['state']}, try {first['try_number']} of {first['max_tries'] + 1}",
    )


def _rows(path: str, columns: str, rest: str = "") -> list[tuple[Any, ...]]:
    result = QueryBuilder().register("t", DeltaTable(path)).execute(f"SELECT {columns} FROM t {rest}").read_all()
    return [tuple(row.values()) for row in pa.table(result).to_pylist()]


@click.command("airflow")
@verbose_option
@click.option("--folder", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Folder for all files, kept afterwards; default: a temporary folder, deleted on success.")
def airflow(folder: Path | None) -> int:
    """Try dblake's DAGs in a real Airflow on this machine, with a dedicated database.

    Airflow is installed once, into .venv-airflow beside this script, or into DBLAKE_AIRFLOW_VENV.
    """
    console = Console()
    venv = Path(os.environ["DBLAKE_AIRFLOW_VENV"]).absolute()
    return run_trial("airflow", folder, console, lambda path: Trial(path, venv, console).run())


if __name__ == "__main__":
    run_job(airflow)
