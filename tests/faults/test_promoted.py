"""A standby takes over from its primary: capture goes on without a gap, or says which part of the log there is not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.postgres import Database, note_postgres
from tests.support.proxy import Proxy
from tests.support.rig import Rig, T

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "primary", version=18) as server:
        note_postgres(server)
        yield server


@contextmanager
def standby_of(primary: EmbeddedPostgres, folder: Path) -> Iterator[EmbeddedPostgres]:
    """A standby of its own, in step, that keeps a copy of the primary's logical slots."""
    conninfo = f"host=127.0.0.1 port={primary.port} user=postgres password={primary.password} dbname=postgres"
    subprocess.run(
        [*primary._as_user(), str(primary.binaries / "pg_basebackup"), "-d", conninfo, "-D", str(folder),
         "-X", "stream", "-c", "fast", "-C", "-S", "standby"],
        check=True, capture_output=True, env=os.environ | {"PGPASSWORD": primary.password}, cwd="/",
    )
    (folder / "standby.signal").touch()
    settings = {
        "primary_conninfo": conninfo, "primary_slot_name": "standby", "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
    }
    with EmbeddedPostgres(folder, version=18, settings=settings) as server:
        yield server


def in_step(standby: EmbeddedPostgres, primary: EmbeddedPostgres, rig: Rig) -> None:
    """Waits until the standby has the slot, which a capture has to move on until it can be copied, and the log."""
    theirs, ours = Database(primary, "postgres"), Database(standby, "postgres")
    deadline = time.monotonic() + 60
    while not ours.rows("SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary"):
        assert time.monotonic() < deadline, "the slot does not come over"
        theirs.run("SELECT pg_log_standby_snapshot()")
        rig.catch_up()
    ((end,),) = theirs.rows("SELECT pg_current_wal_lsn()::text")
    while ours.rows("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", (end,)) != [(False,)]:
        assert time.monotonic() < deadline, "the log does not come over"
        time.sleep(0.1)


def promote(standby: EmbeddedPostgres, rig: Rig) -> None:
    """Makes the standby the server the rig's applications and checks use."""
    assert Database(standby, "postgres").rows("SELECT pg_promote()") == [(True,)]
    backend = rig.backend
    assert isinstance(backend, PostgresBackend) and backend.settings is not None
    backend.database = replace(backend.database, server=standby)
    backend.settings = replace(backend.settings, port=standby.port)


def gaps(rig: Rig) -> list[str]:
    return [line.reason for line in rig.lake.reconciled()[1] if line.status == "gap"]


def test_capture_goes_on_where_the_primary_left_off(primary: EmbeddedPostgres, tmp_path: Path) -> None:
    with standby_of(primary, tmp_path / "standby") as standby:
        rig = Rig(PostgresBackend(Database(primary, "postgres")), tmp_path)
        assert rig.backend.settings is not None
        with Proxy(primary.port) as way:
            rig.configure(port=way.port)
            process = rig.start()
            with rig.load(seed=3):
                rig.lake.dump(T)
                rig.wait_for_batches(5, by=process)
            process.terminate()
            process.communicate(timeout=60)
            in_step(standby, primary, rig)
            process = rig.start()
            rig.wait_for_batches(2, by=process)
            primary.stop(crash=True)
            promote(standby, rig)
            way.redirect(standby.port)
            with rig.load(seed=4):
                rig.lake.dump(T)
                rig.wait_for_batches(5, by=process)
            process.terminate()
            assert "no gap" in process.communicate(timeout=60)[1] and process.returncode == 0
        rig.configure()
        rig.catch_up()
        assert rig.lake.reached.resume.incarnation == 1 and gaps(rig) == []
        assert [dump["state"] for dump in rig.lake.dumps()] == ["done", "done"]
        rig.verify()


def test_what_the_standby_never_received_is_a_gap(primary: EmbeddedPostgres, tmp_path: Path) -> None:
    with standby_of(primary, tmp_path / "standby") as standby:
        rig = Rig(PostgresBackend(Database(primary, "postgres")), tmp_path)
        rig.catch_up()
        in_step(standby, primary, rig)
        standby.stop()
        rig.backend.run("INSERT INTO public.t VALUES (1000, 0, 'lost')")
        rig.catch_up()
        primary.stop(crash=True)
        standby.start()
        promote(standby, rig)
        rig.configure()
        refused = rig.start("--until-caught-up")
        _, said = refused.communicate(timeout=60)
        assert refused.returncode == 78 and "never received is a gap" in said and "--accept-gap" in said
        accepted = rig.start("--until-caught-up", "--accept-gap")
        assert accepted.wait(timeout=120) == 0
        assert rig.lake.reached.resume.incarnation == 2 and gaps(rig) == ["the log after incarnation 1 is missing"]
        assert rig.lake.state(T) == {(row["id"],): row for row in rig.backend.rows(T)}
