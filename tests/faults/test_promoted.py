"""Failover to a promoted standby: capture resumes without a gap, or names the gap if the standby lacks log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.failover import gaps, promote, wait_until_synced
from tests.support.postgres import Database, note_postgres
from tests.support.proxy import Proxy
from tests.support.rig import Rig, T
from tests.support.standby import standby_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "primary", version=18) as server:
        note_postgres(server)
        yield server


def test_capture_resumes_on_promoted_standby_without_gap(primary: EmbeddedPostgres, tmp_path: Path) -> None:
    with standby_of(primary, tmp_path / "standby", sync_replication_slots="on") as standby:
        rig = Rig(PostgresBackend(Database(primary, "postgres")), tmp_path)
        assert rig.backend.settings is not None
        with Proxy(primary.port) as proxy:
            rig.configure(port=proxy.port)
            process = rig.start()
            with rig.load(seed=3):
                rig.lake.dump(T)
                rig.wait_for_batches(5, by=process)
            process.terminate()
            process.communicate(timeout=60)
            wait_until_synced(standby, primary, rig)
            process = rig.start()
            rig.wait_for_batches(2, by=process)
            primary.stop(crash=True)
            promote(standby, rig)
            proxy.redirect(standby.port)
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


@pytest.mark.slow
def test_log_missing_on_promoted_standby_is_a_gap(primary: EmbeddedPostgres, tmp_path: Path) -> None:
    with standby_of(primary, tmp_path / "standby", sync_replication_slots="on") as standby:
        rig = Rig(PostgresBackend(Database(primary, "postgres")), tmp_path)
        rig.catch_up()
        wait_until_synced(standby, primary, rig)
        standby.stop()
        assert isinstance(rig.backend, PostgresBackend)
        rig.backend.run("INSERT INTO public.t VALUES (1000, 0, 'lost')")
        rig.catch_up()
        primary.stop(crash=True)
        standby.start()
        promote(standby, rig)
        rig.configure()
        rejected = rig.start("--until-caught-up")
        _, log = rejected.communicate(timeout=60)
        assert rejected.returncode == 78 and "never received is a gap" in log and "--accept-gap" in log
        accepted = rig.start("--until-caught-up", "--accept-gap")
        assert accepted.wait(timeout=120) == 0
        assert rig.lake.reached.resume.incarnation == 2 and gaps(rig) == ["the log after incarnation 1 is missing"]
        assert rig.lake.state(T) == {(row["id"],): row for row in rig.backend.rows(T)}
