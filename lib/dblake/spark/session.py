"""The Spark session of a job or a test.

Python comes first and starts Spark's own ``spark-submit``, which reads ``conf/spark-defaults.conf`` and the options in
``PYSPARK_SUBMIT_ARGS``, where ``spark-submit.sh`` puts ``--master`` and ``--spark-conf``. So jobs, tests and notebooks
run with the same settings. What depends on the master is decided here, and only where nobody said otherwise.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from dblake.core.processes import defer_signals
from dblake.installation import application_home, import_paths

_LAUNCH = "PYSPARK_SUBMIT_ARGS"


def spark_session(app: str, **settings: str) -> SparkSession:
    """The session, new or already there; ``settings`` are Spark's own (``**{"spark.master": "local[2]"}``)."""
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    given = _launch(settings)
    master = given.setdefault("spark.master", "local[*]")
    if master.startswith("local"):
        given = _local_settings(master) | given
    builder = SparkSession.builder.appName(app)
    for key, value in given.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _launch(settings: dict[str, str]) -> dict[str, str]:
    """Starts the JVM; returns all that was set for it, in code, by option or in spark-defaults.conf."""
    if SparkContext._gateway is None:
        os.environ["SPARK_CONF_DIR"] = str(application_home() / "conf")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark's Python workers start with an empty path of their own.
        os.environ["PYTHONPATH"] = os.pathsep.join([*import_paths(), *filter(None, [os.environ.get("PYTHONPATH")])])
        jars = shlex.join(_jar_options())
        os.environ[_LAUNCH] = f"{jars} {os.environ.get(_LAUNCH, 'pyspark-shell')}"
    # There is no public way to start the JVM before a context; afterwards SparkConf() shows what it was started with.
    # Interrupted, PySpark removes the folder in which the JVM leaves its port, and a JVM that cannot do so never ends.
    with defer_signals():
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    return dict(SparkConf().getAll()) | settings


def _jar_options() -> list[str]:
    """Return spark-submit's options for Delta's jars: those that set-up resolved, else Ivy resolves them now."""
    jars = sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))
    if jars:
        return ["--jars", ",".join(jars)]
    spark = ".".join(version("pyspark").split(".")[:2])
    return ["--packages", f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"]


def _local_settings(master: str) -> dict[str, str]:
    """One machine: as many shuffle partitions as cores, no UI, no look-up of the machine's own name.

    Tables are paths here. The folder Spark makes for schemas by name holds nothing worth keeping; it goes with us
    instead of staying in the folder the job was started in.
    """
    by_name = tempfile.mkdtemp(prefix="dblake-spark-")
    atexit.register(shutil.rmtree, by_name, ignore_errors=True)
    cores = master.partition("[")[2].rstrip("]").partition(",")[0]
    count = int(cores) if cores.isdigit() else (os.cpu_count() or 1) if cores == "*" else 1
    return {
        "spark.sql.shuffle.partitions": str(count),
        # Landing's files are small and unlike: dealt out in more parts than cores, the cores end together.
        "spark.sql.files.minPartitionNum": str(2 * count),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": by_name,
    }
