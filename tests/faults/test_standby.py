"""Standbys of ``run --continuous`` and of outputs, with the leader killed, frozen and thawed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblake.base.lake.frontier import read_frontier
from dblake.base.lake.log import Application, newest_batch
from dblake.base.lake.query import query_rows
from tests.support.consumers import TABLES, Shop
from tests.support.output_lake import OutputLake, wait_for
from tests.support.sql_places import Place
from tests.support.wheel import NO_JVM

HOME = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Job:
    """A job as a process, with its log."""

    def __init__(self, conf: Path, log: Path, job: str, *options: str) -> None:
        self._log = log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, str(HOME / f"jobs/{job}.py"), "--conf", str(conf), *options], stdout=sink, stderr=sink,
                env=os.environ | NO_JVM | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for_log(self, text: str) -> None:
        wait_for(lambda: text in self.log or self.process.poll() is not None)
        assert text in self.log, self.log

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(180)


@contextmanager
def jobs_of(conf: Path, job: str, *options: str) -> Iterator[Callable[..., Job]]:
    """Yield a function that starts the job, with further options; all are killed at the end."""
    started: list[Job] = []

    def start(*more: str) -> Job:
        started.append(Job(conf, conf.with_name(f"{len(started)}.log"), job, *options, *more))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.process.kill()
            one.process.wait()


def configure_run(folder: Path, progress: str) -> Path:
    conf = folder / "shop.yaml"
    conf.write_text(json.dumps({
        "warehouse": "./warehouse", "progress": progress,
        "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
                   "password": "${env:NONE}", "tables": ["public.*"]},
        "state": {"interval_seconds": 0.5}, "run": {"check_seconds": None, "maintain_seconds": None},
    }), encoding="utf-8")
    return conf


def landed_batch(shop: Shop) -> int:
    return newest_batch(shop.paths.landing, Application.capture("shop"))


def has_folded(shop: Shop) -> bool:
    """Return True if state holds everything that has landed, and equals the source."""
    if read_frontier(shop.paths).batch == 0 or newest_batch(shop.paths.events, Application.reconcile("shop")) < \
            landed_batch(shop):
        return False
    for table in TABLES:
        rows = query_rows(shop.paths.state(*table.split(".")), "SELECT id, amount, note FROM t WHERE NOT _deleted")
        if sorted(((row["id"], row["amount"], row["note"]) for row in rows), key=str) != shop.rows(table):
            return False
    return True


def copied(place: Place) -> list[str]:
    """Return the values in the target's table; none before there is one."""
    (exists,) = place.rows("SELECT to_regclass('public.t') IS NOT NULL")
    return [value for value, in place.rows("SELECT v FROM public.t")] if exists[0] else []


def change(shop: Shop) -> None:
    shop.move(5)
    shop.land()


def test_standby_run_takes_over_from_frozen_leader(tmp_path: Path, zookeeper_url: str) -> None:
    shop = Shop(tmp_path)
    shop.move(3)
    shop.land(*TABLES)
    with jobs_of(configure_run(tmp_path, zookeeper_url), "run", "--continuous") as start:
        leader = start()
        leader.wait_for_log("run of shop leads")
        standby = start()
        standby.wait_for_log("run of shop is on standby")
        wait_for(lambda: has_folded(shop))
        leader.freeze()
        change(shop)
        standby.wait_for_log("run of shop leads")
        wait_for(lambda: has_folded(shop))
        leader.thaw()
        change(shop)
        assert leader.process.wait(180) == 75, leader.log
        assert "lost its lease" in leader.log
        wait_for(lambda: has_folded(shop))
        # Another standby, which a leader that ends in order leaves the work to.
        third = start()
        third.wait_for_log("run of shop is on standby")
        fourth = start()
        fourth.wait_for_log("run of shop is on standby")
        assert fourth.stop() == 0 and "events reach" not in fourth.log, fourth.log
        assert standby.stop() == 0, standby.log
        third.wait_for_log("run of shop leads")
        change(shop)
        wait_for(lambda: has_folded(shop))
        assert third.stop() == 0, third.log
    rows = query_rows(shop.paths.events, "SELECT incarnation, lsn, seq FROM t")
    positions = [tuple(row.values()) for row in rows]
    assert len(positions) == len(set(positions))


def test_second_run_with_local_progress_ends_with_75(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.land(*TABLES)
    with jobs_of(configure_run(tmp_path, "file:./progress"), "run", "--continuous") as start:
        first = start()
        wait_for(lambda: has_folded(shop))
        second = start()
        assert second.process.wait(180) == 75
        assert "another run holds the lease" in second.log
        assert first.stop() == 0, first.log


def test_standby_output_takes_over_from_frozen_leader(
    tmp_path: Path, zookeeper_url: str, on_postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen leader of the output ``sql`` is fenced; a bounded run does not wait."""
    monkeypatch.setenv("COPY_PASSWORD", on_postgres.password)
    lake = OutputLake(tmp_path, {
        "copy": {"type": "sql", "url": on_postgres.url, "password": "${env:COPY_PASSWORD}", "tls": "disable"},
    }, progress=zookeeper_url)

    with jobs_of(lake.conf, "subscribe", "--output", "copy") as start:
        leader = start()
        wait_for(lambda: copied(on_postgres) == ["a"])
        standby, bounded = start(), start("--until-caught-up")
        standby.wait_for_log("on standby: another process holds the checkpoint")
        assert bounded.process.wait(180) == 75, bounded.log
        leader.freeze()
        lake.change()
        wait_for(lambda: copied(on_postgres) == ["2"])
        wait_for(lambda: lake.output("copy")["process"] == standby.process.pid)
        leader.thaw()
        lake.change()
        wait_for(lambda: copied(on_postgres) == ["3"])
        assert leader.process.wait(180) == 75, leader.log
        wait_for(lambda: lake.output("copy")["state"] == "running")
        assert standby.stop() == 0, standby.log
    assert lake.output("copy")["state"] == "stopped"


def test_leader_frozen_in_its_transaction_frees_the_target(
    tmp_path: Path, zookeeper_url: str, on_postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the transaction after two minutes; the thawed leader finds its connection closed."""
    monkeypatch.setenv("COPY_PASSWORD", on_postgres.password)
    lake = OutputLake(tmp_path, {
        "copy": {"type": "sql", "url": on_postgres.url, "password": "${env:COPY_PASSWORD}", "tls": "disable"},
    }, progress=zookeeper_url)
    with jobs_of(lake.conf, "subscribe", "--output", "copy") as start:
        monkeypatch.setenv("DBLAKE_FAILPOINT", "outputs.sql.applied:1:freeze")
        leader = start()
        monkeypatch.delenv("DBLAKE_FAILPOINT")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        wait_for(lambda: on_postgres.rows(waiting) == [(1,)])
        standby = start()
        wait_for(lambda: copied(on_postgres) == ["a"], 300)
        leader.thaw()
        assert leader.process.wait(180) == 75, leader.log
        assert standby.stop() == 0, standby.log
    assert copied(on_postgres) == ["a"]


def test_standby_of_killed_leader_continues_files(tmp_path: Path, zookeeper_url: str) -> None:
    file = tmp_path / "t.jsonl"
    lake = OutputLake(tmp_path, {
        "archive": {"type": "jsonl", "path": str(file), "tables": ["public.t"]},
    }, progress=zookeeper_url)

    def written() -> list[Any]:
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line["after"]["v"] for line in lines if "op" in line]

    with jobs_of(lake.conf, "subscribe", "--output", "archive") as start:
        leader = start()
        wait_for(lambda: written() == ["a"])
        standby = start()
        standby.wait_for_log("on standby")
        leader.process.kill()
        lake.change()
        wait_for(lambda: written() == ["a", "2"])
        assert standby.stop() == 0, standby.log
    assert written() == ["a", "2"]
