"""Debezium's embedded engine: a Scala program compiled with Spark's compiler and run with Debezium's jars.

Raises ``debian.Unavailable`` if the jars cannot be fetched.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from tests.support.ivy import fetched_jars
from tests.support.java import find_java

VERSION = "3.2.0"
_PACKAGES = (
    f"io.debezium:debezium-embedded:{VERSION}.Final", f"io.debezium:debezium-connector-postgres:{VERSION}.Final",
    "org.slf4j:slf4j-simple:1.7.36",
)
_SETTINGS = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore", "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled", "slot.drop.on.stop": "false", "snapshot.mode": "no_data",
}


class DebeziumProgram:
    """A program around the engine: one Scala object, named as its file. ``compiled`` makes it."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command, self._folder = command, folder

    def run(self, settings: Mapping[str, str], *arguments: str) -> list[str]:
        """Run it with the engine's settings, as a properties file, and arguments; return the lines that it prints."""
        return _run(self._prepare(settings, arguments))

    def start(self, settings: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
        """Start it as ``run`` does, with pipes."""
        command = [find_java(), *self._prepare(settings, arguments)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
        )

    def _prepare(self, settings: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
        properties = self._folder / "engine.properties"
        lines = (f"{key}={value}\n" for key, value in {**_SETTINGS, **settings}.items())
        properties.write_text("".join(lines), encoding="utf-8")
        return [*self._command, str(properties), *arguments]

    @classmethod
    @contextmanager
    def compiled(cls, source: Path) -> Iterator[DebeziumProgram]:
        """Compile a program for the block."""
        jars = fetched_jars(f"debezium-{VERSION}", _PACKAGES)
        spark = Path(_find_spark_home()) / "jars"
        needed = os.pathsep.join([*map(str, jars.glob("*.jar")), str(next(spark.glob("scala-library-*.jar")))])
        with tempfile.TemporaryDirectory() as name:
            program = Path(name) / "program.jar"
            _run(["-cp", f"{spark}/*", "scala.tools.nsc.Main", "-classpath", needed, "-d", str(program), str(source)])
            path = os.pathsep.join([str(program), needed])
            levels = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
            yield cls(["-Xmx1g", levels, "-cp", path, source.stem], Path(name))


def _run(arguments: list[str]) -> list[str]:
    done = subprocess.run(
        [find_java(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Java failed: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.splitlines()
