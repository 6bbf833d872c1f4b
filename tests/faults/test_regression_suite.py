"""A server's own test suite runs while capture follows: it never ends, and every table with a key is right."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.effort import EFFORT, choose_seed
from tests.support.mysql import MysqlServer
from tests.support.mysql_suite import KEPT, SuiteDatabase
from tests.support.operations.system import LiveSystem
from tests.support.postgres import debian_server
from tests.support.regress import RegressionDatabase
from tests.support.rig import HOME

NAMED = ("suspended", "incomplete", "state_behind")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("spark")
def test_capture_follows_regression_suite_of_postgres(tmp_path: Path) -> None:
    with debian_server(tmp_path / "server", None) as server:
        database, share, seed = RegressionDatabase(server), min(EFFORT / 6, 1), choose_seed()
        follow_suite(
            LiveSystem(database, tmp_path, patterns=["*.*"]),
            lambda: f"{database.run_suite(tmp_path / 'output', share, seed)} tests", least=30 if share == 1 else 2,
        )


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("spark")
def test_capture_follows_test_suite_of_mariadb(tmp_path: Path) -> None:
    with MysqlServer("mariadb", tmp_path / "server", "--sql-mode=") as server:
        database, count = SuiteDatabase(server), 10 * EFFORT
        seed = choose_seed()
        system = LiveSystem(database, tmp_path, patterns=["test.*", f"{KEPT}.*"])
        follow_suite(
            system, lambda: f"{count} tests left {database.run_suite(tmp_path / 'output', count, seed)} tables", least=1
        )


def follow_suite(system: LiveSystem, run: Callable[[], str], least: int) -> None:
    """Capture while a suite runs, then verify all tables with a key, of which there are at least so many."""
    system.start_capture()
    over = threading.Event()

    def run_suite() -> None:
        try:
            print(run())
        finally:
            over.set()

    suite = threading.Thread(target=run_suite)
    suite.start()
    ends = dict[int, int]()
    try:
        while not over.wait(1.0):
            system.wait(0.2)
            if ends := system.take_ends():
                print(ends, system.capture_errors())
                break
    finally:
        suite.join()
    assert ends == {}, system.capture_errors()
    verify_tables(system, least)
    assert system.stop_capture() == ""


def verify_tables(system: LiveSystem, least: int) -> None:
    """Let state catch up, compare every table with a key by ``verify``, and print what is named."""
    for _ in range(60):
        system.wait(1.0)
        system.advance()
        status = system.status()
        if not any(dump["state"] in ("queued", "running") for dump in status["dumps"]):
            break
    named = {problem["table"]: f"{problem['code']}: {problem['detail']}" for problem in status["problems"]
             if problem["code"] in NAMED}
    followed = [table for table, life in status["captured"].items() if life["state"] == "followed"]
    print(f"{len(status['captured'])} tables, {len(followed)} followed, {len(named)} named")
    unusual = {table: why for table, why in sorted(named.items()) if "no primary key" not in why}
    print(*(f"{table}: {why}" for table, why in unusual.items()), sep="\n")
    keyed = [table for table in followed if table not in named]
    chosen = [word for table in keyed for word in ("--table", table)]
    done = subprocess.Popen(
        [sys.executable, str(HOME / "jobs/verify.py"), "--conf", str(system.conf), "--wait", "--json", *chosen],
        env=system.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    while done.poll() is None:
        system.wait(1.0)
        system.advance()
    output, errors = done.communicate()
    assert output, errors
    results = json.loads(output)
    print(f"{len(results)} tables compared, {sum(one['rows_compared'] for one in results):,} rows")
    assert len(results) == len(keyed) >= least
    assert [one for one in results if one["missing"] or one["extra"] or one["different"]] == []
