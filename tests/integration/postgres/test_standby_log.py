"""The log of a standby: dumps under load, a move from the primary, promotion, conflicts, and rejected pairs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from dblake.base.core.errors import ExitCode, PositionLost, PrerequisitesNotMet
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Check
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import plan_init, run_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.source import PostgresSource
from tests.support.backends import PostgresBackend, StandbyBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database, note_postgres
from tests.support.standby import standby_of

pytestmark = pytest.mark.timeout(240)

T = "public.t"
ITEMS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))


class Pair:
    """A primary with a table of 300 rows, and the standby whose log is captured."""

    def __init__(self, primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
        self.primary, self.standby = primary, standby
        self.backend = StandbyBackend(Database(primary, "postgres"), standby)
        self.backend.create(ITEMS)
        self.backend.run("INSERT INTO public.t SELECT n, 'a' FROM generate_series(1, 300) n")

    @property
    def settings(self) -> PostgresSettings:
        assert self.backend.settings is not None
        return self.backend.settings

    def state(self) -> dict[tuple[str | None, ...], dict[str, str | None]]:
        return {(row["id"],): row for row in self.backend.rows(T)}

    @contextmanager
    def load(self) -> Iterator[None]:
        """Insert, update and delete rows at random within the block."""
        done, rng = threading.Event(), random.Random(3)

        def write() -> None:
            while not done.wait(0.002):
                key, verb = str(rng.randint(1, 400)), rng.choice(["insert", "update", "delete"])
                with self.backend.begin() as transaction:
                    if verb == "update":
                        transaction.update(T, {"id": key}, {"v": str(rng.random())})
                    else:
                        transaction.delete(T, {"id": key})
                        if verb == "insert":
                            transaction.insert(T, {"id": key, "v": "new"})

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Yield a pair of version 18, or with the settings of the standby that the test names, of version 16."""
    settings: dict[str, str] | None = getattr(request, "param", None)
    version: Literal[16, 18] = 18 if settings is None else 16
    with (
        EmbeddedPostgres(tmp_path / "primary", version=version, settings={"fsync": "off"}) as primary,
        standby_of(primary, tmp_path / "standby", version=version, **settings or {}) as standby,
    ):
        note_postgres(primary)
        yield Pair(primary, standby)


def unmet(checks: list[Check]) -> list[tuple[str, str, str]]:
    return [(check.check, check.detail, check.fix) for check in checks if not check.ok]


@pytest.mark.parametrize("watermarks", ["table", pytest.param("messages", marks=pytest.mark.slow)])
def test_log_of_standby_follows_its_promotion(
    pair: Pair, tmp_path: Path, watermarks: Literal["table", "messages"]
) -> None:
    """From the primary's log to the standby's, with a dump under load there; then the standby is promoted."""
    lake, backend = CaptureLake(tmp_path / "lake"), pair.backend
    backend.source("public.*")
    on_standby = replace(pair.settings, watermarks=watermarks)
    on_primary = replace(on_standby, port=pair.primary.port, primary=None)
    run_init(on_primary, pair.primary.user, pair.primary.password)
    with pair.load():
        lake.capture(PostgresSource(on_primary))
        run_init(on_standby, pair.primary.user, pair.primary.password)
        source = PostgresSource(on_standby)
        assert unmet(source.preflight()) == []
        assert plan_init(on_standby, pair.primary.user, pair.primary.password).statements == ()
        lake.capture(PostgresSource(on_primary), until=Until(seconds=1), heartbeat_seconds=0.2)
        lake.dump(T)
        lake.capture(source, chunk_size=50)
    lake.capture(source)
    assert lake.state(T) == pair.state()
    assert [dump["state"] for dump in lake.dumps()] == ["done"]

    def promote() -> None:
        Database(pair.standby, "postgres").rows("SELECT pg_promote()")
        Database(pair.standby, "postgres").run("INSERT INTO public.t VALUES (1000, 'promoted')")

    lake.dump(T)
    with pytest.raises(PrerequisitesNotMet, match=r"log_standby: .* is no standby \(any more\)") as rejected:
        lake.capture(source, chunk_size=100, steps={("read", T): promote})
    assert rejected.value.exit_code == ExitCode.CONFIGURATION
    assert ("1000",) not in lake.state(T), "nothing of the next timeline has landed as if it were of this one"
    pair.primary.stop(crash=True)
    promoted = replace(on_standby, primary=None)
    lake.capture(PostgresSource(promoted))
    backend.settings, backend.database = promoted, Database(pair.standby, "postgres")
    assert lake.state(T) == {(row["id"],): row for row in PostgresBackend.rows(backend, T)}
    assert lake.state(T)["1000",]["v"] == "promoted"
    assert lake.reached.resume.incarnation == 1
    assert {line.status for line in lake.reconciled()[1]} <= {"closed", "discarded"}


@pytest.mark.parametrize("pair", [{"hot_standby_feedback": "off", "max_standby_streaming_delay": "0"}], indirect=True)
def test_slot_lost_by_conflict_is_a_gap(pair: Pair, tmp_path: Path) -> None:
    """VACUUM of the primary's catalog removes rows that a logical slot on the standby may need."""
    lake, backend = CaptureLake(tmp_path / "lake"), pair.backend
    source = backend.source("public.*")
    (feedback,) = [check for check in source.preflight() if check.check == "standby_feedback"]
    assert feedback.ok and feedback.detail.startswith("hot_standby_feedback not set on the standby")
    lake.capture(source)
    backend.run("CREATE TABLE other (id int)", "DROP TABLE other", "VACUUM pg_class, pg_attribute, pg_type, pg_depend")
    backend.run("INSERT INTO public.t VALUES (500, 'b')")
    with pytest.raises(PositionLost, match=r"the primary removed rows of the catalog .*hot_standby_feedback.*, a gap"):
        lake.capture(source, until=Until(seconds=20))
    lost = unmet(source.preflight())
    assert [name for name, _, _ in lost] == ["slot_log"] and "hot_standby_feedback" in lost[0][1]
    # The capture role may not call for the record that a slot on a standby begins at.
    lake.capture(source, accept_gap=True)
    assert lake.state(T) == pair.state()
    assert lake.reached.resume.incarnation == 2


def test_servers_that_are_no_pair_are_rejected(pair: Pair, tmp_path: Path) -> None:
    pair.backend.source("public.*")
    settings, primary, standby = pair.settings, pair.primary, pair.standby
    address = f"127.0.0.1:{standby.port}"
    swapped = replace(settings, port=primary.port, primary=("127.0.0.1", standby.port))
    found = {name: (detail, fix) for name, detail, fix in unmet(PostgresSource(swapped).preflight())}
    assert found["log_standby"] == (
        "the server at source.host is no standby (any more): watermarks written elsewhere never reach its log",
        "remove source.primary; or set source.host to a standby",
    )
    assert found["standby"] == (
        f"the server at source.primary ({address}) is a standby: it does not accept watermarks",
        "set source.primary to the primary",
    )
    alone = replace(settings, primary=None)
    assert unmet(PostgresSource(alone).preflight())[0] == (
        "standby", "the server is a standby: it does not accept watermarks",
        "set source.host to the primary, or source.primary to its address",
    )
    with EmbeddedPostgres(tmp_path / "stranger", version=18) as stranger:
        Database(stranger, "postgres").run(f"CREATE ROLE {settings.user} LOGIN REPLICATION PASSWORD 'secret'")
        strange = replace(settings, primary=("127.0.0.1", stranger.port))
        assert unmet(PostgresSource(strange).preflight())[0] == (
            "primary", f"the server at source.host is no standby of 127.0.0.1:{stranger.port}",
            "set source.primary to the primary of source.host",
        )
        with pytest.raises(PrerequisitesNotMet, match="is no standby of"):
            CaptureLake(tmp_path / "lake").capture(PostgresSource(strange))
    primary.stop()
    down = PostgresSource(settings).preflight()
    assert [name for name, _, _ in unmet(down)] == ["connect", "replica"]


def test_slot_copied_from_primary_is_rejected(pair: Pair) -> None:
    """A standby keeps such a slot for its promotion; until then it cannot be read."""
    on_primary = Database(pair.primary, "postgres")
    on_primary.rows("SELECT pg_create_logical_replication_slot('copied', 'pgoutput', false, false, true)")
    pair.standby.restart(sync_replication_slots="on")
    pair.backend.source("public.*")
    on_standby, deadline = Database(pair.standby, "postgres"), time.monotonic() + 60
    while not on_standby.rows("SELECT FROM pg_replication_slots WHERE slot_name = 'copied'"):
        assert time.monotonic() < deadline, "the slot was not copied"
        on_primary.rows("SELECT pg_log_standby_snapshot()")
        time.sleep(0.1)
    (name, detail, fix), *_ = unmet(PostgresSource(replace(pair.settings, slot="copied")).preflight())
    assert (name, fix) == ("slot", "set source.slot to another name, then run --init")
    assert "copied from the primary" in detail


@pytest.mark.slow
def test_log_of_cascading_standby_equals_source(pair: Pair, tmp_path: Path) -> None:
    """The log is read from a standby of a standby; watermarks reach it by way of both."""
    with standby_of(pair.standby, tmp_path / "cascade", version=18) as cascade:
        pair.backend = StandbyBackend(Database(pair.primary, "postgres"), cascade)
        lake, source = CaptureLake(tmp_path / "lake"), pair.backend.source("public.*")
        with pair.load():
            lake.dump(T)
            lake.capture(source, chunk_size=50)
        lake.capture(source)
        assert lake.state(T) == pair.state()
        assert [dump["state"] for dump in lake.dumps()] == ["done"]
