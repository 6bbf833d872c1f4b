"""Every job is stopped at moments of its start, run and end: documented exit code, no traceback, no process left."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from dblake.base.lake.query import query_rows
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.ports import free_port
from tests.e2e.test_quickstart import CONF as QUICKSTART
from tests.e2e.test_run import TABLES, Shop
from tests.support.effort import EFFORT
from tests.support.moments import Ending, moments, start, stop_at
from tests.support.postgres import Database, note_postgres

SIGNALS = [signal.SIGTERM, signal.SIGINT]
_CODES = {signal.SIGTERM: (0,), signal.SIGINT: (130, 0)}
"""A job that has ended, or lands what it has read and then ends, has exit code 0."""
_SCRIPT_SECONDS = 1.0
"""How long, under load, the script may take until Python runs. The moment at which it hands over ends by the signal."""


@dataclass(frozen=True)
class Job:
    """A job with its arguments: ``seconds`` of one that does not end; ``in_place`` if it needs the database's slot."""

    arguments: Sequence[str]
    seconds: float | None = None
    in_place: bool = False


JOBS = {
    "capture": Job([], 6.0, in_place=True),
    "changes": Job(["--from", "{first}"]),
    "check": Job(["--all"]),
    "dump": Job(["start", "--all", "--wait"], 5.0),
    "maintain": Job([]),
    "preflight": Job([]),
    "reconcile": Job(["--from", "2", "--compare"]),
    "report": Job(["--output", "-"]),
    "run": Job(["--check", "always", "--maintain", "always"]),
    "sql": Job(["--engine", "spark", "SELECT count(*) FROM public.t0"]),
    "state": Job([]),
    "status": Job([]),
    "subscribe": Job(["--output", "-"], 5.0),
    "up": Job([], 12.0, in_place=True),
    "verify": Job(["--table", "public.t0", "--wait"], 5.0),
}
STOPS = [
    pytest.param(name, number, id=f"{name}-{number.name}")
    for at, name in enumerate(JOBS) for number in (SIGNALS if EFFORT > 1 else [SIGNALS[at % 2]])
]
"""Jobs with the signals that stop them: both with more effort, else one of the two by turns."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Yield a lake where every job has work, some of it for Spark."""
    folder = tmp_path_factory.mktemp("moments")
    with EmbeddedPostgres(folder / "data", settings={"fsync": "off"}) as server:
        note_postgres(server)
        (folder / "shop").mkdir()
        shop = Shop(Database(server, "postgres"), folder / "shop")
        shop.write(1, 500)
        shop.run("run")
        shop.database.run('CREATE TABLE odd (id int PRIMARY KEY, "a b,c:" text)')
        shop.run("preflight", "--init", "--admin-user", server.user, "--admin-password-env", "ADMIN",
                 environment={"ADMIN": server.password})
        shop.database.run("INSERT INTO odd VALUES (1, 'x')", *(f"UPDATE {t} SET v = v || 'y'" for t in TABLES))
        for _ in range(8):
            shop.write(1000 * _ + 1000, 1000 * _ + 1100)
        yield shop


@pytest.fixture(scope="module")
def durations() -> dict[str, float]:
    """Return the seconds of each job that has run to its end."""
    return {}


def run_whole(arguments: Sequence[str], environment: dict[str, str]) -> float:
    """Run a job to its end, and require that it works; return the seconds."""
    began = time.monotonic()
    process = start(arguments, environment)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return time.monotonic() - began


class Copies:
    """The lake in folders of their own, so that each run of a job finds the same work."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        self._shop, self._folder, self._count = shop, folder, 0
        (row,) = query_rows(shop.paths.events, "SELECT min(lsn) AS lsn FROM t")
        self._first = f"1/{row['lsn']}"
        self.environment = {**shop.environment, "PYTHONPATH": ""}

    def command(self, name: str, job: Job) -> list[str]:
        """Return the job's command, in place or on a new copy."""
        conf = self._shop.conf
        if not job.in_place:
            self._count += 1
            folder = self._folder / str(self._count)
            shutil.copytree(conf.parent, folder)
            conf = folder / conf.name
        return [name, *(each.format(first=self._first) for each in job.arguments), "--conf", str(conf)]


def picked(seconds: float, name: str, number: signal.Signals) -> list[float]:
    """Return one of the ten moments of a job, another one for each job and signal; with effort 10 all ten."""
    all_moments = moments(seconds)
    return Random(f"{name} {number}").sample(all_moments, min(EFFORT, len(all_moments)))


def require_clean(endings: Sequence[Ending]) -> None:
    """Fail with all that is wrong with these endings."""
    faults = list[str]()
    for ending in endings:
        by_default = [-ending.number] if ending.delay < _SCRIPT_SECONDS else []
        faults += ending.faults([*_CODES[ending.number], *by_default])
    assert faults == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "number"), STOPS)
def test_job_stopped_at_any_moment_ends_cleanly(
    shop: Shop, durations: dict[str, float], tmp_path: Path, name: str, number: signal.Signals
) -> None:
    job, copies = JOBS[name], Copies(shop, tmp_path)
    seconds = job.seconds or durations.get(name) or run_whole(copies.command(name, job), copies.environment)
    durations[name] = seconds
    endings = [
        stop_at(delay, number, copies.command(name, job), copies.environment)
        for delay in picked(seconds, name, number)
    ]
    require_clean(endings)
    assert max(ending.seconds for ending in endings) < 30, endings


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_quickstart_stopped_at_any_moment_ends_cleanly(
    durations: dict[str, float], tmp_path: Path, number: signal.Signals
) -> None:
    conf = tmp_path / "quickstart.yaml"
    conf.write_text(QUICKSTART.format(port=free_port()))
    command = ["quickstart", "--conf", str(conf), "--scale", "1"]
    seconds = durations.get("quickstart") or run_whole(command, {})
    durations["quickstart"] = seconds
    require_clean([stop_at(delay, number, command) for delay in picked(seconds, "quickstart", number)])


@pytest.mark.slow
def test_job_stopped_while_it_starts_ends_cleanly(tmp_path: Path) -> None:
    """Before the job handles signals: in the script, in Python's own start, in the imports."""
    conf = tmp_path / "shop.yaml"
    conf.write_text("warehouse: ./w\nprogress: file:./p\nsource: {name: shop, type: postgres, host: 127.0.0.1, "
                    "port: 1, database: d, user: u, password: \"${env:NONE}\", tables: [public.*]}\n")
    command = ["status", "--offline", "--conf", str(conf)]
    delays = [0.0, 0.01, 0.03, 0.1, 0.2, 0.4]
    with ThreadPoolExecutor(2) as pool:
        stops = [pool.submit(stop_at, delay, number, command) for delay in delays for number in SIGNALS]
        require_clean([each.result() for each in stops])


@pytest.mark.timeout(120)
def test_job_interrupted_while_jvm_starts_leaves_none(tmp_path: Path) -> None:
    warehouse = tmp_path / "w" / "shop"
    warehouse.mkdir(parents=True)
    conf = tmp_path / "shop.yaml"
    conf.write_text("warehouse: ./w\nprogress: file:./p\nsource: {name: shop, type: postgres, host: 127.0.0.1, "
                    "port: 1, database: d, user: u, password: \"${env:NONE}\", tables: [public.*]}\n")
    ending = stop_at(1.8, signal.SIGINT, ["sql", "--engine", "spark", "SELECT 1", "--conf", str(conf)])
    require_clean([ending])
    assert ending.code == 130
