"""Jobs that a user's own ``spark-submit``, or Airflow's operator for it, starts on a standalone cluster.

As docs/deployment.md describes them, except that Delta's jars are local.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from textwrap import indent
from types import MappingProxyType

import pyspark
import pytest

from dblake.base.core.processes import end_with_parent, stop_process
from dblake.ingest.source.postgres.ports import free_port
from dblake.installation import write_archive
from tests.e2e.test_airflow import airflow_venv, environment, run_in_airflow
from tests.e2e.test_run import HOME, TABLES, Shop
from tests.support.postgres import Database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPARK_HOME = Path(pyspark.__file__).parent
JARS = ",".join(map(str, sorted((Path(sys.prefix) / "jars").glob("*.jar"))))

# Installed without its requirements: they include PySpark, which the operator does not import.
PROVIDER = """apache-airflow-providers-apache-spark==6.3.4 \\
    --hash=sha256:ee20e90549844c0c734c36420c426ed9ee7c259df60625b34435123727c99175"""
_DAG = """
import json, sys
from datetime import UTC, datetime
from airflow.sdk import DAG
with DAG("submitting", schedule=None) as dag:
@OPERATOR@
if __name__ == "__main__":
    print(json.dumps(str(dag.test(logical_date=datetime(2026, 1, 1, tzinfo=UTC)).state)))
"""


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
        self, conf: Path, *options: str, mode: str = "client", job: str = "run", code: int = 0,
        jars: Iterable[Path] = (), settings: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Run a job through ``spark-submit``, require its exit code and return all output."""
        given = {"spark.driver.host": "127.0.0.1", **settings}
        done = subprocess.run(
            [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, "--deploy-mode", mode,
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
    assert "not supported for python applications on standalone" in cluster.submit(shop.conf, mode="cluster", code=1)


def test_airflow_operator_submits_job_to_cluster(cluster: Cluster, database: Database, tmp_path: Path) -> None:
    """The operator in docs/deployment.md, with the connection that it describes."""
    venv = provided_venv(tmp_path)
    shop = Shop(database, tmp_path)
    shop.write(1, 50)
    document = (HOME / "docs" / "deployment.md").read_text(encoding="utf-8")
    (snippet,) = [s for s in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "SparkSubmitOperator(" in s]
    connection = json.loads(re.findall(r"AIRFLOW_CONN_SPARK='(.*)'", document)[0])
    for documented, actual in {
        "/opt/dblake/conf/shop.yaml": str(shop.conf), "/opt/dblake/dblake.zip": str(cluster.archive),
        "/opt/dblake/jobs": str(HOME / "jobs"), "/opt/dblake/.venv/bin/python": sys.executable,
        "{{ conn.shop.password }}": "secret", 'packages="io.delta:delta-spark_4.2_2.13:4.4.0"': f'jars="{JARS}"',
        'task_id="run"': 'task_id="run", conf={"spark.driver.host": "127.0.0.1"}',
    }.items():
        assert documented in snippet
        snippet = snippet.replace(documented, actual)
    file = tmp_path / "airflow" / "dags" / "submitting.py"
    file.parent.mkdir(parents=True)
    file.write_text(_DAG.replace("@OPERATOR@", indent(snippet, "    ")))
    variables = environment(tmp_path) | {
        "AIRFLOW_CONN_SPARK": json.dumps(connection | {"host": "spark://127.0.0.1", "port": cluster.port}),
        "PATH": f"{SPARK_HOME / 'bin'}:{os.environ['PATH']}", "SPARK_HOME": str(SPARK_HOME),
    }
    subprocess.run([str(venv / "bin/airflow"), "db", "migrate"], env=variables, check=True, capture_output=True)
    assert "success" in run_in_airflow(venv, tmp_path, file.read_text(), "", variables)
    assert [shop.count(table) for table in TABLES] == [50] * 10


def provided_venv(folder: Path) -> Path:
    """Return Airflow's environment with the provider of the operator; skip the test if it cannot be installed."""
    venv, requirement = airflow_venv(), folder / "provider.txt"
    requirement.write_text(PROVIDER)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    done = subprocess.run([*pip, "-r", str(requirement)], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"Airflow's provider for Spark could not be installed: {done.stderr[-500:]}")
    return venv
