"""A busy table in a database, and dblake's jobs on it as processes that a test kills and restarts.

The table's keys change as ``oracle`` defines, so that ``verify`` detects every lost, duplicated or reordered change,
whatever happened before. The processes run with small chunks and many commits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.storage import Location
from dblake.base.lake.tables import open_table
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.model.dblog import Event
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend, mysql_backend
from tests.support.oracle import KEYS, ObservedEvent, Step, Writers, find_wrong_steps, remaining_rows
from tests.support.postgres import fresh_database
from tests.support.s3 import S3_KEYS, storage_section

HOME = Path(__file__).parents[2]
T = "public.t"
Job = subprocess.Popen[str]
_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""The jobs live for seconds only, so the JVM's optimizing compiler would never pay off."""
PACE = {"commits_per_second": 2.0}
"""Capture settings with which Spark keeps up, also on a machine under load."""


class Rig:
    """The database, its configuration and its jobs. ``written`` records every change since the initial rows."""

    def __init__(
        self, backend: PostgresBackend | MysqlBackend, folder: Path, also: Sequence[str] = (), /, *,
        warehouse: Location | None = None, **capture: float,
    ) -> None:
        """``also`` are statements to run before the log is first opened; ``capture`` overrides capture settings."""
        self.backend, self.lake, self._folder = backend, CaptureLake(folder, warehouse=warehouse), folder
        self._warehouse = warehouse
        self.written: dict[str, list[Step]] = {str(key): [] for key in range(1, KEYS + 1)}
        backend.create(TableSchema(T, (
            Column("id", "integer", False, 1), Column("n", "integer", False), Column("v", "text"),
        )))
        with backend.begin() as transaction:
            for key in self.written:
                transaction.insert(T, {"id": key, "n": "0", "v": "first"})
        (backend.server if isinstance(backend, MysqlBackend) else backend).run(*also)
        backend.source("public.*")
        assert backend.settings is not None
        self._capture = {"commits_per_second": 20.0, "heartbeat_seconds": 1.0, **capture}
        self.configure()
        self.environment = os.environ | {
            "PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": backend.settings.password, **S3_KEYS, **_JVM,
        }
        if not backend.keeps_log_for_reader:
            # The log begins where capture first opens it.
            self.catch_up()

    @property
    def conf(self) -> Path:
        """Return the path of the configuration file."""
        return self._folder / "shop.yaml"

    def configure(self, *, port: int = 0, warehouse: str = "", **dump: float) -> None:
        """Write the configuration for processes started from now on; ``port`` replaces the server's, for a proxy."""
        settings = self.backend.settings
        assert settings is not None
        storage = self._warehouse.storage if self._warehouse else None
        self.conf.write_text(json.dumps({
            "warehouse": warehouse or self._warehouse or "./warehouse", "progress": "file:./progress",
            **({"storage": storage_section(storage)} if storage else {}),
            "source": {
                "name": "shop", "host": settings.host, "port": port or settings.port, "user": settings.user,
                "password": "${env:SHOP_PASSWORD}", "tls": "disable", "tables": ["public.*"],
                **_own_settings(self.backend),
            },
            "capture": {"new_tables": "ignore", **self._capture},
            # A delay after each chunk spreads a dump over several batches, so that progress is saved several times.
            "dump": {"chunk_size": 7, "delay": 0.03, **dump},
        }), encoding="utf-8")

    def connect(self) -> Any:
        """Return an application's connection, not in autocommit."""
        if isinstance(self.backend, MysqlBackend):
            return self.backend.server.connect("public", autocommit=False)
        connection = self.backend.database.connect()
        connection.autocommit = False
        return connection

    def start(self, *arguments: str, failpoint: str = "", job: str = "capture") -> Job:
        """Start a job in its own process group, so that ``kill`` also ends its JVM."""
        return subprocess.Popen(
            [sys.executable, str(HOME / f"jobs/{job}.py"), "--conf", str(self.conf), *arguments],
            env=self.environment | {"DBLAKE_FAILPOINT": failpoint}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            # The pipe is read after the end; this size keeps a JVM's output from blocking it.
            text=True, start_new_session=True, pipesize=1 << 20,
        )

    def run(self, job: str, *arguments: str, seconds: float = 300) -> None:
        """Run a job to its end. Raises AssertionError if it fails or takes longer than ``seconds``."""
        process = self.start(*arguments, job=job)
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill(process)
            raise AssertionError(f"{job} has not ended after {seconds:.0f} s") from None
        assert process.returncode == 0, errors

    def catch_up(self) -> None:
        """Run capture until the log and all dumps have landed."""
        self.run("capture", "--until-caught-up", seconds=120)

    @contextmanager
    def load(self, seed: int, **how: Any) -> Iterator[Writers]:
        """Write transactions of one to three rows for the duration of the block; ``how`` are options of ``Writers``."""
        with Writers(self.connect, self.written, seed, **how) as writers:
            yield writers

    def verify(self) -> None:
        """Verify landing through the model: every step there once and in order, rows equal to the source's."""
        events, ledger = self.lake.reconciled()
        self._verify([observe_event(event) for event in events if event.table == T])
        assert self.lake.state(T) == {(str(row["id"]),): row for row in self.backend.rows(T)}
        batches = set(self.lake.landing()["batch"].to_pylist())
        assert batches == set(range(1, max(batches) + 1))
        assert any(line.status == "closed" and line.emitted for line in ledger)

    def verify_tables(self) -> int:
        """Verify the tables that Spark wrote, events and state, likewise. Return the number of events."""
        events = read_observed_events(open_table(self.lake.paths.events))
        self._verify(events)
        rows = open_table(self.lake.paths.state("public", "t")).to_pyarrow_table(columns=["id", "n", "v", "_deleted"])
        state = sorted((str(row["id"]), str(row["n"]), row["v"]) for row in rows.to_pylist() if not row["_deleted"])
        source = sorted((row["id"], row["n"], row["v"]) for row in self.backend.rows(T))
        assert state == source, f"state differs from the source: {sorted(set(state) ^ set(source))[:20]}"
        return len(events)

    def wait_for_batches(self, batches: int, by: Job, *, seconds: float = 60) -> None:
        """Wait until ``by`` has landed so many further batches. Raises AssertionError after ``seconds``."""
        target, deadline = self.newest_batch() + batches, time.monotonic() + seconds
        while self.newest_batch() < target:
            assert by.poll() is None, by.communicate()[1]
            assert time.monotonic() < deadline, f"landing has batch {self.newest_batch()}, expected {target}"
            time.sleep(0.1)

    def newest_batch(self) -> int:
        """Return the newest batch in landing, 0 if there is none."""
        reached = self.lake.open_landing().reached
        return reached.batch if reached else 0

    def _verify(self, events: list[ObservedEvent]) -> None:
        wrong = find_wrong_steps(events, self.written)
        assert not wrong, "\n".join([f"{len(wrong)} steps are wrong", *wrong[:20]])
        source = {str(row["id"]): int(row["n"] or 0) for row in self.backend.rows(T)}
        assert source == remaining_rows(self.written), "the source differs from the recorded steps: the oracle is wrong"


def observe_event(event: Event) -> ObservedEvent:
    """Return an event of the model as the oracle compares it."""
    n = (event.after or {}).get("n")
    op = "phantom" if event.op == "d" and event.chunk_id else event.op
    return ObservedEvent((event.key or ("?",))[0], op, None if n is None else int(n), event.position, event.batch)


def read_observed_events(table: DeltaTable) -> list[ObservedEvent]:
    """Return the busy table's events in order. Raises AssertionError if two share a position."""
    columns = ["incarnation", "lsn", "seq", "table", "op", "key", "after", "origin", "batch"]
    rows = [row for row in table.to_pyarrow_table(columns=columns).to_pylist() if row["table"] == T]
    positions = [(row["incarnation"], row["lsn"], row["seq"]) for row in rows]
    assert len(set(positions)) == len(positions), "two events share a position"
    events = []
    for position, row in sorted(zip(positions, rows, strict=True), key=lambda pair: pair[0]):
        n = dict(row["after"] or {}).get("n")
        op = "phantom" if row["op"] == "d" and row["origin"] == "dump" else row["op"]
        events.append(ObservedEvent(dict(row["key"])["id"], op, None if n is None else int(n), position, row["batch"]))
    return events


def kill(process: Job) -> bool:
    """Send SIGKILL to a process and its descendants; return False if it had already ended."""
    ended = process.poll() is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return not ended


def _own_settings(backend: PostgresBackend | MysqlBackend) -> dict[str, object]:
    """Return the ``source`` settings that only this type of database has."""
    if isinstance(backend, MysqlBackend):
        return {"type": backend.server.flavour}
    settings = backend.settings
    assert settings is not None
    return {
        "type": "postgres", "database": settings.database, "slot": settings.slot, "publication": settings.publication,
    }


@contextmanager
def rig_at(
    server: EmbeddedPostgres | MysqlServer, folder: Path, also: Sequence[str] = (), /, **options: Any
) -> Iterator[Rig]:
    """Yield a rig in a fresh database of a server, or on an emptied server."""
    if isinstance(server, EmbeddedPostgres):
        with fresh_database(server) as database:
            postgres = PostgresBackend(database)
            yield Rig(postgres, folder, also, **options)
            postgres.close()
    else:
        with mysql_backend(server) as mysql:
            yield Rig(mysql, folder, also, **options)


@contextmanager
def rig_on(
    kind: str, request: pytest.FixtureRequest, folder: Path, also: Sequence[str] = (), /, **options: Any
) -> Iterator[Rig]:
    """Yield a rig on the session's server of that kind, the name of a fixture."""
    with rig_at(request.getfixturevalue(kind), folder, also, **options) as rig:
        yield rig
