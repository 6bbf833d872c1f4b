"""Start the Spark session of a job or a test.

Python starts Spark's own ``spark-submit``, which reads ``conf/spark-defaults.conf`` and the options in
``PYSPARK_SUBMIT_ARGS``, where ``spark-submit.sh`` puts ``--master`` and ``--spark-conf``. Guarantee: jobs, tests and
notebooks run with the same settings; settings for ``local`` masters apply only where none were given.
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
from dblake.spark.storage import require_storage, storage_jars, storage_settings

_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"


def spark_session(app: str, warehouse: str = "", **settings: str) -> SparkSession:
    """Return the active session or start one that reaches ``warehouse``.

    ``settings`` are Spark's (``**{"spark.master": "local[2]"}``).
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        require_storage(running, warehouse)
        return running
    configured = _start_jvm(settings, storage_jars(warehouse)) | storage_settings(warehouse)
    master = configured.setdefault("spark.master", "local[*]")
    if master.startswith("local"):
        configured = _local_settings(master) | configured
    builder = SparkSession.builder.appName(app)
    for key, value in configured.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _start_jvm(settings: dict[str, str], more_jars: list[str]) -> dict[str, str]:
    """Start the JVM and return every setting given in code, as an option or in spark-defaults.conf."""
    if SparkContext._gateway is None:
        os.environ["SPARK_CONF_DIR"] = str(application_home() / "conf")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark's Python workers start with an empty module path.
        os.environ["PYTHONPATH"] = os.pathsep.join([*import_paths(), *filter(None, [os.environ.get("PYTHONPATH")])])
        jars = shlex.join(_jar_options(more_jars))
        os.environ[_SUBMIT_ARGS] = f"{jars} {os.environ.get(_SUBMIT_ARGS, 'pyspark-shell')}"
    # No public API starts the JVM before a context; afterwards SparkConf() holds the JVM's settings.
    # Interrupted, PySpark removes the folder in which the JVM leaves its port, and a JVM that cannot do so never ends.
    with defer_signals():
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    return dict(SparkConf().getAll()) | settings


def _jar_options(more: list[str]) -> list[str]:
    """Return spark-submit's options for ``more`` and Delta's jars, which Ivy resolves now unless set-up did."""
    jars = sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))
    if jars:
        return ["--jars", ",".join(jars + more)]
    spark = ".".join(version("pyspark").split(".")[:2])
    delta = ["--packages", f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"]
    return [*delta, "--jars", ",".join(more)] if more else delta


def _local_settings(master: str) -> dict[str, str]:
    """Return settings for one machine: one shuffle partition per core, no UI, loopback addresses.

    Tables are addressed by path, so the folder of Spark's catalog is temporary and deleted at exit.
    """
    catalog = tempfile.mkdtemp(prefix="dblake-spark-")
    atexit.register(shutil.rmtree, catalog, ignore_errors=True)
    cores = master.partition("[")[2].rstrip("]").partition(",")[0]
    count = int(cores) if cores.isdigit() else (os.cpu_count() or 1) if cores == "*" else 1
    return {
        "spark.sql.shuffle.partitions": str(count),
        # Landing's files are small and of unequal size: more partitions than cores balance the load.
        "spark.sql.files.minPartitionNum": str(2 * count),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": catalog,
    }
