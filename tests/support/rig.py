"""A busy table on a database of a test's own, and dblake's jobs over it as processes, to be killed and started again.

The table's keys step as ``oracle`` has it, so that after whatever happened ``verify`` can tell a change that was lost,
told twice or told late. Processes have settings of their own: small chunks, many commits.
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

from dblake.core.schema import Column, TableSchema
from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.model.dblog import Event
from tests.support.backends import PostgresBackend
from tests.support.lake import Lake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend, mysql_backend
from tests.support.oracle import KEYS, Step, Told, Writers, left, wrong_steps
from tests.support.postgres import fresh_database

HOME = Path(__file__).parents[2]
T = "public.t"
Job = subprocess.Popen[str]
_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""A life of some seconds is over before code is worth compiling well."""
PACE = {"commits_per_second": 2.0}
"""What a rig is to capture by if Spark has to keep up, on machines with other things to do too."""


class Rig:
    """``written`` has what the table's writers did from the first load on."""

    def __init__(
        self, backend: PostgresBackend | MysqlBackend, folder: Path, also: Sequence[str] = (), **capture: float
    ) -> None:
        """``also`` are statements to be run before anybody looks at the log."""
        self.backend, self.lake, self._folder = backend, Lake(folder), folder
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
            "PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": backend.settings.password, **_JVM,
        }
        if not backend.keeps_log_for_reader:
            # The log begins where capture first looks.
            self.catch_up()

    @property
    def conf(self) -> Path:
        """The configuration file."""
        return self._folder / "shop.yaml"

    def configure(self, *, port: int = 0, warehouse: str = "./warehouse", **dump: float) -> None:
        """What processes started from now on keep to; ``port`` is a proxy's, if there is one."""
        settings = self.backend.settings
        assert settings is not None
        self.conf.write_text(json.dumps({
            "warehouse": warehouse, "progress": "file:./progress",
            "source": {
                "name": "shop", "host": settings.host, "port": port or settings.port, "user": settings.user,
                "password": "${env:SHOP_PASSWORD}", "tls": "disable", "tables": ["public.*"],
                **_own_settings(self.backend),
            },
            "capture": self._capture,
            # A rest after each chunk spreads a dump over several batches, so that progress is saved several times.
            "dump": {"chunk_size": 7, "delay": 0.03, **dump},
        }), encoding="utf-8")

    def connect(self) -> Any:
        """A connection of an application's, with a transaction open from its first statement on."""
        if isinstance(self.backend, MysqlBackend):
            return self.backend.server.connect("public", autocommit=False)
        connection = self.backend.database.connect()
        connection.autocommit = False
        return connection

    def start(self, *arguments: str, failpoint: str = "", job: str = "capture") -> Job:
        """A job, in a process group of its own, so that a JVM dies with it."""
        return subprocess.Popen(
            [sys.executable, str(HOME / f"jobs/{job}.py"), "--conf", str(self.conf), *arguments],
            env=self.environment | {"DBLAKE_FAILPOINT": failpoint}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            # Read when it is over: what a JVM says by then must not make it wait.
            text=True, start_new_session=True, pipesize=1 << 20,
        )

    def run(self, job: str, *arguments: str, seconds: float = 300) -> None:
        """A job to its end, which must be a good one."""
        process = self.start(*arguments, job=job)
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill(process)
            raise AssertionError(f"{job} has not ended after {seconds:.0f} s") from None
        assert process.returncode == 0, said

    def catch_up(self) -> None:
        """Capture until all there is has landed, dumps included."""
        self.run("capture", "--until-caught-up", seconds=120)

    @contextmanager
    def load(self, seed: int, **how: Any) -> Iterator[Writers]:
        """Transactions of one to three rows, for as long as the block lasts."""
        with Writers(self.connect, self.written, seed, **how) as writers:
            yield writers

    def verify(self) -> None:
        """Nothing was lost, nothing was told twice, and the rows are the source's, as the specification has it."""
        events, ledger = self.lake.reconciled()
        self._verify([told(event) for event in events if event.table == T])
        assert self.lake.state(T) == {(str(row["id"]),): row for row in self.backend.rows(T)}
        batches = set(self.lake.landing()["batch"].to_pylist())
        assert batches == set(range(1, max(batches) + 1))
        assert any(line.status == "closed" and line.emitted for line in ledger)

    def verify_tables(self) -> int:
        """The same of what Spark has made of it: events and state. Returns how many events there are."""
        events = events_of(DeltaTable(self.lake.paths.events))
        self._verify(events)
        rows = DeltaTable(self.lake.paths.state("public", "t")).to_pyarrow_table(columns=["id", "n", "v", "_deleted"])
        kept = sorted((str(row["id"]), str(row["n"]), row["v"]) for row in rows.to_pylist() if not row["_deleted"])
        source = sorted((row["id"], row["n"], row["v"]) for row in self.backend.rows(T))
        assert kept == source, f"state is not the source: {sorted(set(kept) ^ set(source))[:20]}"
        return len(events)

    def moves_on(self, batches: int, by: Job) -> None:
        """Waits until so many more have landed."""
        wanted, deadline = self.batch() + batches, time.monotonic() + 60
        while self.batch() < wanted:
            assert by.poll() is None, by.communicate()[1]
            assert time.monotonic() < deadline, "nothing lands any more"
            time.sleep(0.1)

    def batch(self) -> int:
        """The newest batch in landing."""
        reached = self.lake.open_landing().reached
        return reached.batch if reached else 0

    def _verify(self, events: list[Told]) -> None:
        wrong = wrong_steps(events, self.written)
        assert not wrong, "\n".join([f"{len(wrong)} steps are wrong", *wrong[:20]])
        source = {str(row["id"]): int(row["n"] or 0) for row in self.backend.rows(T)}
        assert source == left(self.written), "the source is not what its writers left: the oracle is wrong"


def told(event: Event) -> Told:
    """An event of the specification's."""
    n = (event.after or {}).get("n")
    op = "phantom" if event.op == "d" and event.chunk_id else event.op
    return Told((event.key or ("?",))[0], op, None if n is None else int(n), event.position, event.batch)


def events_of(table: DeltaTable) -> list[Told]:
    """The events of the busy table, in their order. No two share a position."""
    columns = ["incarnation", "lsn", "seq", "table", "op", "key", "after", "origin", "batch"]
    rows = [row for row in table.to_pyarrow_table(columns=columns).to_pylist() if row["table"] == T]
    places = [(row["incarnation"], row["lsn"], row["seq"]) for row in rows]
    assert len(set(places)) == len(places), "two events share a position"
    found = []
    for place, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0]):
        n = dict(row["after"] or {}).get("n")
        op = "phantom" if row["op"] == "d" and row["origin"] == "dump" else row["op"]
        found.append(Told(dict(row["key"])["id"], op, None if n is None else int(n), place, row["batch"]))
    return found


def kill(process: Job) -> bool:
    """SIGKILL for a process and all that it has started; False if it had ended by itself."""
    ended = process.poll() is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return not ended


def _own_settings(backend: PostgresBackend | MysqlBackend) -> dict[str, object]:
    """What only sources of this kind have."""
    if isinstance(backend, MysqlBackend):
        return {"type": backend.server.flavour}
    settings = backend.settings
    assert settings is not None
    return {
        "type": "postgres", "database": settings.database, "slot": settings.slot, "publication": settings.publication,
    }


@contextmanager
def rig_at(
    server: EmbeddedPostgres | MysqlServer, folder: Path, also: Sequence[str] = (), **capture: float
) -> Iterator[Rig]:
    """A rig on a server."""
    if isinstance(server, EmbeddedPostgres):
        with fresh_database(server) as database:
            postgres = PostgresBackend(database)
            yield Rig(postgres, folder, also, **capture)
            postgres.close()
    else:
        with mysql_backend(server) as mysql:
            yield Rig(mysql, folder, also, **capture)


@contextmanager
def rig_on(
    kind: str, request: pytest.FixtureRequest, folder: Path, also: Sequence[str] = (), **capture: float
) -> Iterator[Rig]:
    """A rig on the run's server of that kind."""
    with rig_at(request.getfixturevalue(kind), folder, also, **capture) as rig:
        yield rig
