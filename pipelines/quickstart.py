"""The whole path on one machine, from nothing: a real PostgreSQL with live writes, dumped while it is written to.

Composes what the other jobs do, each as its user would: capture runs as its own light process, reconcile and state in
this one. Ends with a proof: both sides count and hash every table on their own.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dblake.capture.progress import ProgressStore, open_progress
from dblake.capture.requests import queue_dump, status
from dblake.config import Config
from dblake.core.errors import ConfigError, SourceError, StateError
from dblake.core.names import split_qualified
from dblake.core.processes import end_with_parent, stop_process
from dblake.core.schema import TableSchema
from dblake.lake.layout import Paths
from dblake.reconcile.stream import reconcile_once
from dblake.source.postgres.digest import digests
from dblake.source.postgres.embedded import EmbeddedPostgres
from dblake.source.postgres.init import run_init
from dblake.source.postgres.source import PostgresSource
from dblake.spark.session import spark_session
from dblake.spark.sql_literals import delta, identifier
from dblake.sql.query import query
from dblake.state.digest import digest_sql
from dblake.state.run import run_state
from pipelines.sources import postgres_settings

_MARKER = "made-by-dblake-quickstart"
_HOME = Path(__file__).parents[1]
_ACCOUNTS_A_SCALE = 100_000

_FILL_SECONDS = 300
"""For ``pgbench -i``, and as much again for each ten of its scale."""
_STALL_SECONDS = 180
"""Longest time without a newly landed chunk during the dump; starting capture on a busy machine is part of it."""
_CATCH_UP_SECONDS = 1800
_CAPTURE_STOP_SECONDS = 60
"""Capture ends at a transaction's end and lands what it has read."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One table on both sides: ``(rows, hash)`` each."""

    table: str
    source: tuple[int, int]
    state: tuple[int, int]

    @property
    def equal(self) -> bool:
        """True if both sides agree."""
        return self.source == self.state


@dataclass
class Quickstart:
    """One run. ``say`` tells the person watching; everything is made in one folder, which is made anew."""

    config: Config
    config_file: Path
    console: Console
    scale: int = 5
    changes_per_second: int = 300
    _spark: SparkSession | None = field(default=None, init=False)

    def run(self) -> list[Proof]:
        """Runs it all; returns the proof for each table."""
        folder = self._fresh_folder()
        database = EmbeddedPostgres(folder / "postgres", port=self.config.source.port)
        self.say(f"1. A PostgreSQL of its own, with {self.scale * _ACCOUNTS_A_SCALE:,} accounts")
        with database:
            self._fill(database)
            settings = postgres_settings(self.config)
            self.say("2. Preflight: capture role, grants, watermark table, publication, slot")
            run_init(settings, database.user, database.password)
            tables = [t for t in PostgresSource(settings).tables() if t.primary_key]
            store = open_progress(self.config.progress, self.config.source.name)
            with self._capture(folder) as capture, self._load(database, folder):
                self.say(f"3. Dump of {len(tables)} tables, while pgbench writes to all of them")
                queue_dump(store, [t.table for t in tables])
                self._spark = spark_session("dblake quickstart")
                self._watch_dump(store, capture, folder)
                self.say("4. Reconcile and state, while capture and the writes go on")
                self._advance()
            self.say("5. The writes have ended; the rest of the log follows")
            self._run_job("capture", "--until-caught-up")
            self._advance()
            self.say("6. Proof: each side counts and hashes its rows on its own")
            every = list(PostgresSource(settings).tables())
            return self._prove(digests(settings, every), every)

    def say(self, text: str) -> None:
        """One step of the story."""
        self.console.print(f"[bold]{text}[/bold]")

    @property
    def spark(self) -> SparkSession:
        """The session, once it has been started."""
        assert self._spark is not None
        return self._spark

    def ask(self, question: str) -> DataFrame:
        """What one SQL statement over state, events or history answers."""
        return query(self.spark, Paths(self.config.warehouse, self.config.source.name), question)

    def _fresh_folder(self) -> Path:
        folder = Path(self.config.warehouse).parent
        if folder.exists() and any(folder.iterdir()) and not (folder / _MARKER).exists():
            raise ConfigError(
                f"warehouse: {folder} holds something that the quickstart did not make",
                next_step="name a warehouse in a folder of its own",
            )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / _MARKER).touch()
        secret = Path(self.config.source.password.target)
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(24), encoding="ascii")
        return folder

    def _fill(self, database: EmbeddedPostgres) -> None:
        name = self.config.source.database
        with closing(database.connect()) as admin, admin.cursor() as cur:
            cur.execute(f'CREATE DATABASE "{name}"')
        self._initialise(database)
        with closing(database.connect(name)) as admin, admin.cursor() as cur:
            # It has no key. Its rows are only ever inserted, but without this PostgreSQL would refuse an UPDATE.
            cur.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")

    def _initialise(self, database: EmbeddedPostgres) -> None:
        """Let pgbench make its tables."""
        seconds = _FILL_SECONDS * (1 + self.scale / 10)
        log = Path(self.config.warehouse).parent / "pgbench.log"
        load = self._pgbench(database, "-i", "-q", "-s", str(self.scale))
        try:
            code = load.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"pgbench did not fill the tables within {seconds:.0f} s",
                next_step=f"read {log}, then run again with a smaller --scale",
            ) from None
        finally:
            stop_process(load)
        if code:
            raise SourceError(f"pgbench could not fill the tables (exit code {code})", next_step=f"read {log}")

    def _pgbench(self, database: EmbeddedPostgres, *arguments: str) -> subprocess.Popen[bytes]:
        with (Path(self.config.warehouse).parent / "pgbench.log").open("ab") as log:
            return subprocess.Popen(
                [*end_with_parent(), str(database.binaries / "pgbench"), "-h", "127.0.0.1", "-p", str(database.port),
                 "-U", database.user, *arguments, self.config.source.database],
                env={**os.environ, "PGPASSWORD": database.password, "PGSSLMODE": "disable"},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    @contextmanager
    def _load(self, database: EmbeddedPostgres, folder: Path) -> Iterator[None]:
        """pgbench's own read-write transactions, each three updates and an insert."""
        rate = max(1, self.changes_per_second // 4)
        load = self._pgbench(database, "-n", "-c", "2", "-R", str(rate), "-T", "3600")
        try:
            yield
            if load.poll() is not None:
                raise SourceError("pgbench stopped writing", next_step=f"read {folder / 'pgbench.log'}")
        finally:
            stop_process(load)

    @contextmanager
    def _capture(self, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Capture as a process of its own, as it would run beside any database."""
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
            bar = progress.add_task("rows dumped", total=self.scale * (_ACCOUNTS_A_SCALE + 11))
            seen, since = None, time.monotonic()
            while True:
                dumps = status(store)
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
        paths = Paths(self.config.warehouse, self.config.source.name)
        started = time.monotonic()
        batch = reconcile_once(self.spark, paths)
        reconciled = time.monotonic()
        results = run_state(self.spark, paths, parallel=2)
        for result in results:
            if result.error:
                raise result.error
        events = sum(r.events for r in results)
        self.console.print(
            f"   up to landing batch {batch}: {events:,} events; reconcile {reconciled - started:.1f} s, "
            f"state {time.monotonic() - reconciled:.1f} s"
        )

    def _prove(self, source: dict[str, tuple[int, int]], tables: list[TableSchema]) -> list[Proof]:
        paths = Paths(self.config.warehouse, self.config.source.name)
        proofs = []
        for table in tables:
            columns = ", ".join(identifier(name) for name in table.names)
            relation = f"(SELECT {columns} FROM {delta(paths.state(*split_qualified(table.table)))} WHERE NOT _deleted)"
            row = self.spark.sql(digest_sql(table, relation)).first()
            if row is None:
                raise StateError(f"the state of {table.table} cannot be read")
            proofs.append(Proof(table.table, source[table.table], (row["rows"], int(row["hash"]))))
        return proofs


def _capture_log(folder: Path) -> Path:
    return folder / "capture.log"


def _require_running(capture: subprocess.Popen[bytes], folder: Path) -> None:
    if capture.poll() is not None:
        raise SourceError(
            f"capture ended early (exit code {capture.returncode})", next_step=f"read {_capture_log(folder)}"
        )
