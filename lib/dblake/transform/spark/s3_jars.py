"""The jars that Spark needs for a warehouse on S3, resolved on first use: nothing of it is downloaded otherwise.

They are hadoop-aws with the few modules of AWS's SDK that it uses (14 MB; AWS's bundle has 655 MB), and the log store
``S3LogStore.scala``. PySpark brings the Scala compiler that compiles it. All are in the folder ``jars-s3`` of the
environment, so that later starts download and compile nothing. Guarantee: a folder is complete, or it is not used.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from dblake.base.core.errors import ConfigError, StorageUnavailable

_HADOOP = "3.5.0"
_SDK = "2.35.4"
_SDK_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client")
_SPARK_HAS = (
    "software.amazon.awssdk:bundle", "org.apache.hadoop:hadoop-common", "org.wildfly.openssl:*", "org.slf4j:*",
    "commons-logging:*", "commons-codec:*", "io.netty:*", "io.unitycatalog:*", "org.apache.httpcomponents:*",
    "com.fasterxml.jackson.*:*",
)
"""What Spark brings, and what S3A runs without."""
_SOURCE = Path(__file__).with_name("S3LogStore.scala")
_INSTALL_SECONDS = 1800
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def s3_jars() -> list[str]:
    """Return the paths of all jars; download missing jars first.

    Raises StorageUnavailable if a download fails, ConfigError if the environment cannot be written.
    """
    folder = Path(sys.prefix) / "jars-s3"
    if not _is_complete(folder):
        try:
            with _locked(folder):
                if not _is_complete(folder):
                    _install(folder)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            raise ConfigError(
                f"the jars for S3 are missing, and {sys.prefix} is not writable: {error.strerror}",
                next_step="run ./spark-submit.sh setup --s3 as the environment's owner",
            ) from error
    return sorted(map(str, folder.glob("*.jar")))


def _packages() -> list[str]:
    return [
        f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
        *(f"software.amazon.awssdk:{module}:{_SDK}" for module in _SDK_MODULES),
        f"io.delta:delta-storage:{version('delta-spark')}",
    ]


def _stamp() -> str:
    return f"{' '.join(_packages())} without {' '.join(_SPARK_HAS)}; log store {zlib.crc32(_SOURCE.read_bytes())}"


def _is_complete(folder: Path) -> bool:
    stamp = folder / "resolved"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _stamp()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time install; the others wait and reuse it."""
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(folder: Path) -> None:
    print(f"dblake: resolving {_packages()[0]} and {len(_packages()) - 1} more for S3, once", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="ivy.") as ivy:
        work = Path(ivy)
        nothing = work / "nothing.py"
        nothing.touch()
        _run(
            [
                str(Path(_find_spark_home()) / "bin" / "spark-submit"), "--master", "local[1]",
                "--packages", ",".join(_packages()), "--exclude-packages", ",".join(_SPARK_HAS),
                "--conf", f"spark.jars.ivy={ivy}", str(nothing),
            ],
            "the jars for S3 could not be resolved",
            "read Ivy's message above; behind a proxy set SPARK_SUBMIT_OPTS=-Dhttps.proxyHost=…",
        )
        jars = work / "jars"
        _run(
            _compiler(jars, jars / "dblake-s3-log-store.jar"), "the log store for S3 could not be compiled",
            "read the message above; ./spark-submit.sh setup restores the environment",
        )
        # Delta's own jars have it.
        for storage in jars.glob("io.delta_*.jar"):
            storage.unlink()
        (jars / "resolved").write_text(_stamp(), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        jars.rename(folder)


def _compiler(jars: Path, target: Path) -> list[str]:
    """Return the command that compiles the log store against the resolved jars and Spark's own."""
    spark = Path(_find_spark_home()) / "jars"
    needed = [*spark.glob("hadoop-client-api-*.jar"), *spark.glob("scala-library-*.jar"), *jars.glob("*.jar")]
    home = os.environ.get("JAVA_HOME")
    return [
        f"{home}/bin/java" if home else "java", "-cp", f"{spark}/*", "scala.tools.nsc.Main",
        "-classpath", os.pathsep.join(map(str, needed)), "-d", str(target), str(_SOURCE),
    ]


def _run(command: list[str], what: str, next_step: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": ""},
        )
    except subprocess.TimeoutExpired:
        raise StorageUnavailable(f"{what} within {_INSTALL_SECONDS} s", next_step="run this again") from None
    if done.returncode:
        print("\n".join((done.stdout + done.stderr).splitlines()[-20:]), file=sys.stderr)
        raise StorageUnavailable(what, next_step=next_step)


if __name__ == "__main__":
    s3_jars()
