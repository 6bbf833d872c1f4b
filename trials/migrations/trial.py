"""Try a real application's migrations under capture: ``./spark-submit.sh trial migrations``.

Wagtail with django-oscar migrates forth, back with rows, and forth again while ``up`` and an output ``sql`` run. The
capture role has what one ``preflight --init`` granted before most tables existed. Guarantee: exits 70 unless all
tables are equal at the end, in state and in the output's database, without an administrator's step between.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dblake.base.core.errors import DblakeError, ExitCode
from jobs.cli.frame import run_job, verbose_option
from trials.databases import COPY, SHOP, Application, Kind, application
from trials.frame import SCRIPT, Expectation, Jobs, run_trial

_ENGINES = {"postgres": "postgresql", "mariadb": "mysql"}
_PROJECT = "trials.migrations.project"
_BACK = (
    ("address", "zero"), ("basket", "zero"), ("catalogue", "0003"), ("flatpages", "zero"),
    ("wagtailimages", "0023"), ("wagtaildocs", "0011"), ("wagtailsearchpromotions", "zero"), ("wagtailforms", "zero"),
    ("wagtailembeds", "zero"), ("wagtailusers", "zero"), ("wagtailredirects", "zero"),
)
"""As far as each app goes back with rows: beyond the numbered ones, reverse migrations fail on any database."""
_MIGRATE_SECONDS = 1200
_SETTLE_SECONDS = 300
_SHOWN = 5


@dataclass
class Trial:
    """One trial on one database; all its files are in ``folder``."""

    kind: Kind
    folder: Path
    venv: Path
    console: Console

    def run(self) -> list[Expectation]:
        """Run the trial and return its expectations in order."""
        with application(self.kind, self.folder) as app:
            self._announce("1. Migrate the first app, so that the application owns tables, and prepare capture")
            self._django(app, "migrate", "auth")
            conf = self.folder / "shop.yaml"
            app.write_conf(conf, outputs={"copy": app.output()}, state={"interval_seconds": 1})
            jobs = Jobs(conf, app.environment)
            jobs.require("preflight", "--init", "--admin-user", app.admin, "--admin-password-env", "ADMIN_PASSWORD")
            with jobs.running("up") as up, jobs.running("subscribe", "--output", "copy") as output:
                self._migrate_back_and_forth(app)
                self._announce("5. Wait for state and output, and compare")
                different = _wait_until_equal(app)
                verified = jobs.run("verify", "--wait", "--json", seconds=_SETTLE_SECONDS * 2)
                status = json.loads(jobs.require("status", "--json"))
                ended = [name for name, process in (("up", up), ("subscribe", output)) if process.poll() is not None]
            return [
                Expectation("up and subscribe run to the end", not ended, ", ".join(ended) or "both"),
                _expect_state(verified), _expect_followed(status),
                Expectation("The output has the source's rows", not different,
                            _listed(different) or f"{len(_tables(app))} tables"),
            ]

    def _migrate_back_and_forth(self, app: Application) -> None:
        self._announce("2. Migrate all apps, and write rows")
        self._django(app, "migrate")
        self._write_rows(app, "1")
        self._announce("3. Migrate back, with rows")
        for name, target in _BACK:
            self._django(app, "migrate", name, target)
        self._announce("4. Migrate all apps again, and write rows")
        self._django(app, "migrate")
        self._write_rows(app, "2")

    def _announce(self, text: str) -> None:
        self.console.print(f"[bold]{self.kind}: {text}[/bold]")

    def _django(self, app: Application, *arguments: str) -> None:
        self._python(app, "-m", "django", *arguments)

    def _write_rows(self, app: Application, round_: str) -> None:
        self._python(app, "-m", f"{_PROJECT}.rows", round_)

    def _python(self, app: Application, *arguments: str) -> None:
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": f"{_PROJECT}.settings", "PYTHONPATH": str(SCRIPT.parent),
            "TRIAL_ENGINE": _ENGINES[app.kind], "TRIAL_PORT": str(app.port), "TRIAL_PASSWORD": app.password,
        }
        done = subprocess.run([str(self.venv / "bin/python"), "-W", "ignore", *arguments], env=environment,
                              cwd=self.folder, capture_output=True, text=True, timeout=_MIGRATE_SECONDS, check=False)
        if done.returncode != 0:
            raise DblakeError(f"the application failed: {' '.join(arguments)}",
                              next_step=f"see its message: {done.stderr[-2000:]}")


def _wait_until_equal(app: Application) -> list[str]:
    """Return the tables that differ in the output's database once none does, or after a time."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (different := [table for table in _tables(app) if _source_rows(app, table) != _copied_rows(app, table)]):
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    return different


def _tables(app: Application, database: str = SHOP) -> dict[str, list[str]]:
    """Return the tables of a database with their columns."""
    with _cursor(app, database) as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2",
            (app.schema if app.kind == "postgres" else database,),
        )
        tables: dict[str, list[str]] = {}
        for table, column in cursor.fetchall():
            tables.setdefault(table, []).append(column)
    return tables


def _source_rows(app: Application, table: str) -> list[str]:
    return _rows(app, SHOP, table, _tables(app)[table])


def _copied_rows(app: Application, table: str) -> list[str] | None:
    """Return the rows of the source's columns in the output, which makes a table at its first row; None if none."""
    columns, copied = _tables(app)[table], _tables(app, COPY).get(table)
    if copied is None:
        return []
    return _rows(app, COPY, table, columns) if set(columns) <= set(copied) else None


def _rows(app: Application, database: str, table: str, columns: list[str]) -> list[str]:
    quote = '"' if app.kind == "postgres" else "`"
    names = ", ".join(f"{quote}{column}{quote}" for column in columns)
    with _cursor(app, database) as cursor:
        cursor.execute(f"SELECT {names} FROM {quote}{table}{quote}")
        return sorted(map(repr, cursor.fetchall()))


@contextmanager
def _cursor(app: Application, database: str) -> Iterator[Any]:
    with closing(app.connect(database)) as connection, connection.cursor() as cursor:
        yield cursor


def _expect_state(verified: subprocess.CompletedProcess[str]) -> Expectation:
    """Expect that ``verify`` found every row of every table equal."""
    results = json.loads(verified.stdout) if verified.returncode in (ExitCode.DONE, ExitCode.WRONG_DATA) else []
    return Expectation("State equals the source, row by row", verified.returncode == ExitCode.DONE,
                       f"{len(results)} tables verified" if results else verified.stderr[-500:])


def _expect_followed(status: dict[str, Any]) -> Expectation:
    """Expect that ``status`` has no problem left that someone would have to solve."""
    problems = [f"{problem['code']}: {problem['detail']}" for problem in status["problems"]]
    return Expectation("No table is suspended, and status has no open problem", not problems,
                       _listed(problems) or "none")


def _listed(items: list[str]) -> str:
    more = f", and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


@click.command("migrations")
@verbose_option
@click.option("--database", type=click.Choice(["postgres", "mariadb"]), default="postgres", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Folder for all files, kept afterwards; default: a temporary folder, deleted on success.")
def migrations(database: Kind, folder: Path | None) -> int:
    """Migrate Wagtail with django-oscar back and forth under capture, on a dedicated server.

    The application is installed once, into .venv-migrations beside this script, or into DBLAKE_MIGRATIONS_VENV.
    """
    console = Console()
    venv = Path(os.environ["DBLAKE_MIGRATIONS_VENV"]).absolute()
    return run_trial("migrations", folder, console, lambda path: Trial(database, path, venv, console).run())


if __name__ == "__main__":
    run_job(migrations)
