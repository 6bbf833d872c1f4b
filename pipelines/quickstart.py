"""Run the whole path on one machine: a PostgreSQL server under load, dumped while pgbench writes to it.

Runs the jobs as a user would: capture as a separate process, reconcile and state in this one. Guarantee: the copy is
verified; database and Spark each count and hash every table independently.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dblake.base.core.errors import SourceError, StateError
from dblake.base.core.names import split_qualified
from dblake.base.core.processes import end_with_parent, stop_process
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.ingest.capture.dump_queue import dump_status, queue_dump, queue_verification
from dblake.ingest.capture.progress import ProgressStore, open_progress
from dblake.ingest.source.postgres.digest import digests
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.pgbench import ACCOUNTS_PER_SCALE, Pgbench
from dblake.ingest.source.postgres.source import PostgresSource
from dblake.operate.verification.requests import Verification
from dblake.serve.sql.engine import DuckdbEngine
from dblake.serve.sql.result import QueryResult
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.spark.session import spark_session
from dblake.transform.spark.sql_literals import delta, identifier
from dblake.transform.state.digest import digest_sql
from dblake.transform.state.run import run_state
from pipelines.fresh_folder import fresh_folder
from pipelines.sources import postgres_settings

_MARKER = "made-by-dblake-quickstart"
_HOME = Path(__file__).parents[1]
_STALL_SECONDS = 180
"""Longest time without a newly landed chunk during the dump; starting capture on a busy machine is part of it."""
_CATCH_UP_SECONDS = 1800
_CAPTURE_STOP_SECONDS = 60
"""Capture ends at a transaction's end and lands what it has read."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table's ``(rows, hash)`` at the source and in state."""

    table: str
    source: tuple[int, int]
    state: tuple[int, int]

    @property
    def is_equal(self) -> bool:
        """True if row count and hash agree."""
        return self.source == self.state


@dataclass
class Quickstart:
    """One run of the quickstart. All files are in one folder, which every run recreates."""

    config: Config
    config_file: Path
    console: Console
    scale: int = 5
    changes_per_second: int = 300
    _spark: SparkSession | None = field(default=None, init=False)

    def run(self) -> list[Comparison]:
        """Run all steps and return the comparison of each table."""
        with fresh_folder(Path(self.config.warehouse).parent, _MARKER) as folder:
            secret = Path(self.config.source.password.target)
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(24), encoding="ascii")
            return self._run(folder)

    def _run(self, folder: Path) -> list[Comparison]:
        database = EmbeddedPostgres(folder / "postgres", port=self.config.source.port)
        self._announce(f"1. Start a PostgreSQL server with {self.scale * ACCOUNTS_PER_SCALE:,} accounts")
        with database:
            load = Pgbench(database, self.config.source.database, folder / "pgbench.log")
            load.fill(self.scale)
            settings = postgres_settings(self.config)
            self._announce("2. Preflight: create capture role, grants, watermark table, publication and slot")
            run_init(settings, database.user, database.password)
            tables = [t for t in PostgresSource(settings).tables() if t.primary_key]
            store = open_progress(self.config.progress, self.config.source.name)
            # Before capture starts, which would queue dumps of its own.
            queue_dump(store, [t.table for t in tables])
            with self._capture(folder) as capture, load.writing(self.changes_per_second):
                self._announce(f"3. Dump {len(tables)} tables while pgbench writes to all of them")
                self._spark = spark_session("dblake quickstart")
                self._watch_dump(store, capture, folder)
                self._announce("4. Reconcile and state, while capture and pgbench run")
                self._advance()
                self._announce("5. Verify state against the database row by row, while capture and pgbench run")
                self._verify(store, {t.table: len(t.primary_key) for t in tables}, capture, folder)
            self._announce("6. Stop pgbench and capture the rest of the log")
            self._run_job("capture", "--until-caught-up")
            self._advance()
            self._announce("7. Verify once more, at rest: database and Spark each count and hash every table")
            tables = list(PostgresSource(settings).tables())
            return self._compare(digests(settings, tables), tables)

    def _announce(self, text: str) -> None:
        self.console.print(f"[bold]{text}[/bold]")

    @property
    def spark(self) -> SparkSession:
        """The Spark session; exists after ``run``."""
        assert self._spark is not None
        return self._spark

    def query(self, statement: str) -> QueryResult:
        """Return the result of one SQL statement over state, events or history."""
        return DuckdbEngine(self._paths).query(statement)

    @property
    def _paths(self) -> Paths:
        return Paths(self.config.warehouse, self.config.source.name)

    @contextmanager
    def _capture(self, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run capture within the block, as a separate process."""
        with _capture_log(folder).open("ab") as sink:
            process = subprocess.Popen(
                [*end_with_parent(), *self._command("capture")], env=self._environment(),
                stdin=subprocess.DEVNULL, stderr=sink, stdout=sink,
            )
        try:
            yield process
            _require_running(process, folder)
        finally:
            stop_process(process, _CAPTURE_STOP_SECONDS)

    def _run_job(self, *arguments: str) -> None:
        try:
            done = subprocess.run(
                [*end_with_parent(), *self._command(*arguments)], env=self._environment(), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False, timeout=_CATCH_UP_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"{' '.join(arguments)} did not end within {_CATCH_UP_SECONDS} s",
                next_step="run the quickstart again, with a smaller --rate or on a machine with less load",
            ) from None
        if done.returncode:
            raise SourceError(f"{arguments[0]} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")

    def _command(self, job: str, *arguments: str) -> list[str]:
        return [sys.executable, str(_HOME / "jobs" / f"{job}.py"), "--conf", str(self.config_file), *arguments]

    @staticmethod
    def _environment() -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join((str(_HOME / "lib"), str(_HOME)))}

    def _watch_dump(self, store: ProgressStore, capture: subprocess.Popen[bytes], folder: Path) -> None:
        """Show the progress of the dump until it is done; raise SourceError if it fails or stalls."""
        columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            bar = progress.add_task("rows dumped", total=self.scale * (ACCOUNTS_PER_SCALE + 11))
            seen, since = None, time.monotonic()
            while True:
                dumps = dump_status(store)
                progress.update(bar, completed=sum(d["rows"] for d in dumps))
                failed = [d for d in dumps if d["state"] == "failed"]
                if failed:
                    raise SourceError(f"the dump of {failed[0]['table']} failed: {failed[0]['error']}")
                if all(d["state"] == "done" for d in dumps):
                    return
                _require_running(capture, folder)
                now = [(d["table"], d["state"], d["rows"]) for d in dumps]
                if now != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > _STALL_SECONDS:
                    raise SourceError(
                        f"the dump has made no progress for {_STALL_SECONDS} s",
                        next_step=f"read {_capture_log(folder)}, then run again",
                    )
                time.sleep(0.2)

    def _advance(self) -> None:
        started = time.monotonic()
        batch = reconcile_once(self.spark, self._paths)
        reconciled = time.monotonic()
        results = run_state(self.spark, self._paths, parallel=2)
        for result in results:
            if result.error:
                raise result.error
        events = sum(r.events for r in results)
        self.console.print(
            f"   up to landing batch {batch}: {events:,} events; reconcile {reconciled - started:.1f} s, "
            f"state {time.monotonic() - reconciled:.1f} s"
        )

    def _verify(
        self, store: ProgressStore, tables: dict[str, int], capture: subprocess.Popen[bytes], folder: Path
    ) -> None:
        """Verify tables, given with the number of their key columns, while all jobs run; raise if a row differs.

        A small table may change as a whole whenever it is read; the comparison at rest is enough for it.
        """
        verification = Verification(self._paths, store, queue_verification(store, list(tables)), tables)
        while not verification.advance() and verification.pending != verification.repeated:
            _require_running(capture, folder)
            time.sleep(1)
            self._advance()
        for result in verification.results():
            self.console.print(f"   {result['table']}: {result['rows_compared']:,} rows equal, "
                               f"{result['rows_skipped']:,} changed since they were read")
        verification.require_equal()

    def _compare(self, source: dict[str, tuple[int, int]], tables: list[TableSchema]) -> list[Comparison]:
        comparisons = []
        for table in tables:
            columns = ", ".join(identifier(name) for name in table.names)
            path = delta(self._paths.state(*split_qualified(table.table)))
            relation = f"(SELECT {columns} FROM {path} WHERE NOT _deleted)"
            row = self.spark.sql(digest_sql(table, relation)).first()
            if row is None:
                raise StateError(f"the state of {table.table} cannot be read")
            comparisons.append(Comparison(table.table, source[table.table], (row["rows"], int(row["hash"]))))
        return comparisons


def _capture_log(folder: Path) -> Path:
    return folder / "capture.log"


def _require_running(capture: subprocess.Popen[bytes], folder: Path) -> None:
    if capture.poll() is not None:
        raise SourceError(
            f"capture ended early (exit code {capture.returncode})", next_step=f"read {_capture_log(folder)}"
        )
