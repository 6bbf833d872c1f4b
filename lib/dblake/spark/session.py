"""The Spark session of a job or a test.

Under ``spark-submit`` the session takes what was submitted: ``conf/spark-defaults.conf``, ``--master`` and the Delta
jars. Started by plain Python (the tests, a notebook) it reads the same file and finds the same jars, so that both run
with the same settings. What depends on the master is decided here, and only where nobody said otherwise.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from dblake.core.errors import ConfigError

_HOME = Path(__file__).parents[3]


def spark_session(app: str, **settings: str) -> SparkSession:
    """The session, new or already there; ``settings`` are Spark's own (``**{"spark.master": "local[2]"}``)."""
    wanted = {} if _submitted() else _what_submit_would_pass()
    wanted.update(settings)
    master = wanted.get("spark.master") or _submitted_settings().get("spark.master", "local[*]")
    if master.startswith("local"):
        given = wanted.keys() | _submitted_settings().keys()
        wanted |= {key: value for key, value in _local_settings(master).items() if key not in given}
    builder = SparkSession.builder.appName(app)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _submitted() -> bool:
    # PythonRunner and the shells start the driver's Python with this; nothing else does.
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted_settings() -> dict[str, str]:
    """What came with spark-submit: it stands in the JVM's system properties before any context exists."""
    if not _submitted():
        return {}
    from pyspark import SparkConf, SparkContext

    # Without a gateway SparkConf() would be empty; there is no public way to make one.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _local_settings(master: str) -> dict[str, str]:
    """One machine: as many shuffle partitions as cores, no UI, no name resolution of the machine's own name."""
    cores = master.partition("[")[2].rstrip("]").partition(",")[0]
    count = int(cores) if cores.isdigit() else (os.cpu_count() or 1) if cores == "*" else 1
    return {
        "spark.sql.shuffle.partitions": str(count),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _what_submit_would_pass() -> dict[str, str]:
    """The Delta jars; and where Spark finds our spark-defaults.conf, log4j2.properties and Python."""
    os.environ["SPARK_CONF_DIR"] = str(_HOME / "conf")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = Path(sys.prefix) / "jars"
    jars = sorted(map(str, folder.glob("*.jar")))
    if not jars:
        raise ConfigError(f"no Delta jars in {folder}", next_step="run ./spark-submit.sh setup once")
    return {"spark.master": "local[*]", "spark.jars": ",".join(jars)}
