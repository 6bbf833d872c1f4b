"""Jobs that a user's own ``spark-submit`` starts on a standalone cluster, as docs/deployment.md describes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType

import pyspark
import pytest

from dblake.core.processes import end_with_parent, stop_process
from dblake.installation import write_archive
from dblake.source.postgres.ports import free_port
from tests.e2e.test_run import HOME, TABLES, Shop
from tests.support.postgres import Database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPARK_HOME = Path(pyspark.__file__).parent
JARS = ",".join(map(str, sorted((Path(sys.prefix) / "jars").glob("*.jar"))))


class Cluster:
    """A standalone master and workers with one core each, on this machine; each worker has folders of its own."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.folder, self.archive = folder, folder / "dblake.zip"
        self.work_folders = [folder / f"worker-{number}" / "work" for number in range(1, workers + 1)]
        self.port, self.pages = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        write_archive(self.archive)

    def start(self, stack: ExitStack) -> None:
        """Start all until the stack is closed, and wait for the workers to register."""
        self._start(stack, "Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.pages))
        for work in self.work_folders:
            temporary = work.with_name("tmp")
            temporary.mkdir(parents=True)
            self._start(stack, "Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                        "--work-dir", str(work), self.master, TMPDIR=str(temporary), HOME=str(work.parent),
                        SPARK_LOCAL_DIRS=str(temporary))
        deadline = time.monotonic() + 120
        while not self._has_workers():
            assert time.monotonic() < deadline, (self.folder / "cluster.log").read_text()
            time.sleep(0.5)

    def submit(
        self, conf: Path, *options: str, job: str = "run", code: int = 0, jars: Iterable[Path] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Run a job through ``spark-submit``, require its exit code and return all output."""
        given = {"spark.driver.host": "127.0.0.1", **settings}
        done = subprocess.run(
            [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, "--deploy-mode", "client",
             "--jars", ",".join([JARS, *map(str, jars)]), "--py-files", str(self.archive),
             *(part for name, value in given.items() for part in ("--conf", f"{name}={value}")),
             str(HOME / "jobs" / f"{job}.py"), "--conf", str(conf), *options],
            env=self._environment, capture_output=True, text=True, timeout=400, check=False, cwd=self.folder,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def _has_workers(self) -> bool:
        try:
            with closing(urllib.request.urlopen(f"http://127.0.0.1:{self.pages}/json/", timeout=5)) as page:
                return bool(json.loads(page.read())["aliveworkers"] == len(self.work_folders))
        except OSError:
            return False

    @property
    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return inherited | {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1",
                            "SPARK_DAEMON_MEMORY": "256m"}

    def _start(self, stack: ExitStack, name: str, *options: str, **environment: str) -> None:
        with (self.folder / "cluster.log").open("ab") as log:
            process = subprocess.Popen(
                [*end_with_parent(), str(SPARK_HOME / "bin" / "spark-class"),
                 f"org.apache.spark.deploy.{name.lower()}.{name}", *options],
                env=self._environment | environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            )
        stack.callback(stop_process, process)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path)
        cluster.start(stack)
        yield cluster


def test_spark_submit_runs_job_on_cluster(cluster: Cluster, database: Database, tmp_path: Path) -> None:
    shop = Shop(database, tmp_path)
    shop.write(1, 50)
    output = cluster.submit(shop.conf)
    assert "public.t9: 50 events" in output
    assert [shop.count(table) for table in TABLES] == [50] * 10
    applications = [path.name for path in cluster.work_folders[0].iterdir()]
    assert applications, "no executor ran on the worker"
    assert "nothing to do" in cluster.submit(shop.conf)
    assert "Next: " in cluster.submit(tmp_path / "missing.yaml", code=78)
