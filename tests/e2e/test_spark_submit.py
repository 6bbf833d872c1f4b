"""Jobs that a user's own ``spark-submit`` starts on a standalone cluster, as docs/deployment.md describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

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
    """A standalone master and a worker with one core, on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.archive = folder, folder / "dblake.zip"
        self.port, self.pages = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        write_archive(self.archive)

    def start(self, stack: ExitStack) -> None:
        """Start both until the stack is closed, and wait for the worker to register."""
        self._start(stack, "Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.pages))
        self._start(stack, "Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                    "--work-dir", str(self.folder / "work"), self.master)
        deadline = time.monotonic() + 120
        while not self._has_worker():
            assert time.monotonic() < deadline, (self.folder / "cluster.log").read_text()
            time.sleep(0.5)

    def submit(self, conf: Path, *options: str, job: str = "run", code: int = 0) -> str:
        """Run a job through ``spark-submit``, require its exit code and return all output."""
        done = subprocess.run(
            [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, "--deploy-mode", "client",
             "--jars", JARS, "--py-files", str(self.archive), "--conf", "spark.driver.host=127.0.0.1",
             str(HOME / "jobs" / f"{job}.py"), "--conf", str(conf), *options],
            env=self._environment, capture_output=True, text=True, timeout=400, check=False, cwd=self.folder,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def _has_worker(self) -> bool:
        try:
            with closing(urllib.request.urlopen(f"http://127.0.0.1:{self.pages}/json/", timeout=5)) as page:
                return re.search(r'"aliveworkers"\s*:\s*1', page.read().decode()) is not None
        except OSError:
            return False

    @property
    def _environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return inherited | {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1",
                            "SPARK_DAEMON_MEMORY": "256m"}

    def _start(self, stack: ExitStack, name: str, *options: str) -> None:
        with (self.folder / "cluster.log").open("ab") as log:
            process = subprocess.Popen(
                [*end_with_parent(), str(SPARK_HOME / "bin" / "spark-class"),
                 f"org.apache.spark.deploy.{name.lower()}.{name}", *options],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
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
    applications = [path.name for path in (tmp_path / "work").iterdir()]
    assert applications, "no executor ran on the worker"
    assert "nothing to do" in cluster.submit(shop.conf)
    assert "Next: " in cluster.submit(tmp_path / "missing.yaml", code=78)
