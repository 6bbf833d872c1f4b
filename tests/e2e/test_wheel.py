"""The wheel with the smallest extra for a use, installed into an empty environment, is enough for that use."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_run import Shop
from tests.support.kafka import KafkaServer
from tests.support.postgres import Database
from tests.support.wheel import NEVER_WITH_SQL, NO_JVM, Installed


def run(installed: Installed, *arguments: str, shop: Shop) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(installed.command), *arguments, "--conf", str(shop.conf)], capture_output=True, text=True, timeout=120,
        check=False, cwd=shop.conf.parent, env=installed.environment | {"SHOP_PASSWORD": "secret"},
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_with_smallest_extra_runs_its_job(
    wheel: Path, database: Database, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Capture needs [postgres], SQL [sql], a Kafka subscription [kafka]; a job that lacks its extra names it."""
    shop = Shop(database, tmp_path)
    database.run("INSERT INTO t0 SELECT n, 'value ' || n FROM generate_series(1, 5) n")

    postgres = Installed(tmp_path, wheel, "postgres")
    captured = run(postgres, "capture", "--until-caught-up", shop=shop)
    assert captured.returncode == 0, captured.stderr
    shop.run("run", environment=NO_JVM)

    sql = Installed(tmp_path, wheel, "sql")
    read = run(sql, "sql", "SELECT count(*) AS n FROM t0", "--json", shop=shop)
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == [{"n": 5}]
    packages = {package["name"].lower() for package in json.loads(sql.pip("list", "--format", "json"))}
    assert packages & NEVER_WITH_SQL == set()
    refused = run(sql, "capture", "--until-caught-up", shop=shop)
    assert refused.returncode == 78
    assert "psycopg2 is not installed. Next: pip install 'dblake[postgres]'" in refused.stderr

    with shop.conf.open() as file:
        settings = json.load(file)
    settings["outputs"] = {"bus": {"type": "kafka", "brokers": kafka.brokers, "tls": "disable", "topic": database.name}}
    shop.conf.write_text(json.dumps(settings), encoding="utf-8")
    kafka_only = Installed(tmp_path, wheel, "kafka")
    delivered = run(kafka_only, "subscribe", "--output", "bus", "--until-caught-up", shop=shop)
    assert delivered.returncode == 0, delivered.stderr
    assert len(kafka.read(database.name)) >= 5
