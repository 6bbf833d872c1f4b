"""Debezium's embedded engine as a peer of subscriptions: its rate over the changes behind a replication slot."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from benchmarks.capture_job import PASSWORD
from benchmarks.database import Bench
from tests.support.ivy import fetched_jars
from tests.support.java import find_java

VERSION = "3.2.0"
_PACKAGES = (
    f"io.debezium:debezium-embedded:{VERSION}.Final", f"io.debezium:debezium-connector-postgres:{VERSION}.Final",
    "org.slf4j:slf4j-simple:1.7.36",
)
_SOURCE = Path(__file__).with_name("Debezium.scala")


def measure(bench: Bench, slot: str, events: int) -> float:
    """Return the events per second of the engine from its first batch to the last of ``events`` changes."""
    jars = fetched_jars(f"debezium-{VERSION}", _PACKAGES)
    spark = Path(_find_spark_home()) / "jars"
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(folder) / "engine.jar"
        scala = next(spark.glob("scala-library-*.jar"))
        needed = os.pathsep.join([*map(str, jars.glob("*.jar")), str(scala)])
        _run(["-cp", f"{spark}/*", "scala.tools.nsc.Main", "-classpath", needed, "-d", str(engine), str(_SOURCE)])
        properties = Path(folder) / "engine.properties"
        levels = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        with bench.copied_slot(slot) as copy:
            settings = "".join(f"{key}={value}\n" for key, value in _settings(bench, copy).items())
            properties.write_text(settings, encoding="utf-8")
            path = os.pathsep.join([str(engine), needed])
            program = ["-cp", path, "Debezium", str(properties), str(events)]
            found = json.loads(_run(["-Xmx1g", levels, *program]))
    return float(found["events"] / found["seconds"])


def _settings(bench: Bench, slot: str) -> dict[str, str]:
    settings = bench.settings
    return {
        "name": "bench", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore", "topic.prefix": "bench",
        "database.hostname": settings.host, "database.port": str(settings.port), "database.user": settings.user,
        "database.password": PASSWORD, "database.dbname": settings.database, "plugin.name": "pgoutput",
        "publication.name": settings.publication, "publication.autocreate.mode": "disabled",
        "slot.name": slot, "slot.drop.on.stop": "false", "snapshot.mode": "no_data",
        "table.include.list": r"public\\.item_.*", "max.batch.size": "8192", "max.queue.size": "32768",
    }


def _run(arguments: list[str]) -> str:
    command = [find_java(), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Java failed: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
