"""Start the Spark session of a job or a test.

Python starts Spark's own ``spark-submit``, which reads ``conf/spark-defaults.conf`` and the options in
``PYSPARK_SUBMIT_ARGS``, where ``spark-submit.sh`` puts ``--master`` and ``--spark-conf``. A job that a user's own
``spark-submit`` started finds its JVM running, and adds those of our settings that the user did not give. Guarantee:
jobs, tests and notebooks run with the same settings; settings for ``local`` masters apply only where none were given.

Runners take a ``Session``, a function, and call it when they have work for Spark: before that no JVM starts, and
PySpark is not imported, which takes a second.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from dblake.core.processes import defer_signals
from dblake.installation import application_home, import_paths, spark_defaults, write_archive
from dblake.spark import startup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Callable[[], "SparkSession"]
"""Returns the session, and starts Spark if it does not run yet."""

_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set by a ``spark-submit`` that started this process."""
_MASTER = "spark.master"
_EVERY_CORE = "local[*]"
_START = threading.Lock()


def session_of(app: str, warehouse: str = "", *, is_short: Callable[[], bool] = lambda: False) -> Session:
    """Return the function that returns the active session or starts one.

    ``is_short``: whether the job will end before code that the JVM optimizes pays off; called when Spark starts.
    """
    return lambda: _session(app, warehouse, {}, is_short=is_short)


def as_session(spark: SparkSession | Session) -> Session:
    """Return a function that returns the session, given either."""
    return spark if callable(spark) else lambda: spark


def spark_session(app: str, warehouse: str = "", **settings: str) -> SparkSession:
    """Return the active session or start one that reaches ``warehouse``.

    ``settings`` are Spark's (``**{"spark.master": "local[2]"}``).
    """
    return _session(app, warehouse, settings)


def _session(
    app: str, warehouse: str, settings: dict[str, str], *, is_short: Callable[[], bool] = lambda: False
) -> SparkSession:
    # Delta's conflicts are exceptions of their own only once this is imported.
    import delta.exceptions  # noqa: F401
    from pyspark.sql import SparkSession

    from dblake.spark.storage import require_storage

    with _START:
        # Of another thread there is no active session, but one that it would get.
        running = SparkSession.getActiveSession() or (SparkSession.builder.getOrCreate() if is_running() else None)
        if running is None:
            return _start_session(app, warehouse, settings, is_short=is_short())
        require_storage(running, warehouse)
        return running


def _start_session(app: str, warehouse: str, settings: dict[str, str], *, is_short: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    from dblake.spark.storage import storage_jars, storage_settings

    started = _start_jvm(settings, storage_jars(warehouse), is_short=is_short)
    configured = spark_defaults() | started | storage_settings(warehouse)
    master = configured.setdefault(_MASTER, _EVERY_CORE)
    if _is_local_master(master):
        configured = _local_settings(master) | configured
    builder = SparkSession.builder.appName(app)
    for key, value in configured.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def is_local(session: Session) -> bool:
    """Return True if the session's executors are this machine. Starts Spark only below ``spark-submit``'s JVM."""
    if is_running():
        from pyspark import SparkContext

        context = SparkContext._active_spark_context
        return context is not None and _is_local_master(context.master)
    if _GATEWAY in os.environ:
        return _is_local_master(session().sparkContext.master)
    return _is_local_master(_configured_master())


def is_running() -> bool:
    """Return True if this process has started Spark."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def _is_local_master(master: str | None) -> bool:
    return master == "local" or (master or "").startswith("local[")


def _configured_master() -> str:
    """Return the master with which Spark will start."""
    options = shlex.split(os.environ.get(_SUBMIT_ARGS, ""))
    for name, value in reversed(list(pairwise(options))):
        if name == "--master":
            return value
        if name == "--conf" and value.startswith(f"{_MASTER}="):
            return value.partition("=")[2]
    return spark_defaults().get(_MASTER, _EVERY_CORE)


def _start_jvm(settings: dict[str, str], more_jars: list[str], *, is_short: bool) -> dict[str, str]:
    """Start the JVM and return every setting given in code, as an option or in spark-defaults.conf."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is None and _GATEWAY not in os.environ:
        os.environ["SPARK_CONF_DIR"] = str(application_home() / "conf")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark's Python workers start with an empty module path.
        os.environ["PYTHONPATH"] = os.pathsep.join([*import_paths(), *filter(None, [os.environ.get("PYTHONPATH")])])
        master = settings.get(_MASTER) or _configured_master()
        given = os.environ.get(_SUBMIT_ARGS, "pyspark-shell")
        options = shlex.join([*_jar_options(master, given, more_jars), *_code_options(master)])
        os.environ[_SUBMIT_ARGS] = f"{options} {given}"
        startup.set_java_options(is_short=is_short and _is_local_master(master))
    # No public API starts the JVM before a context; afterwards SparkConf() holds the JVM's settings.
    # Interrupted, PySpark removes the folder in which the JVM leaves its port, and a JVM that cannot do so never ends.
    with defer_signals(), _discarded_stdout():
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    return dict(SparkConf().getAll()) | settings


@contextmanager
def _discarded_stdout() -> Iterator[None]:
    """Start children without our stdout, which is for results: Delta prints progress of VACUUM there."""
    sys.stdout.flush()
    ours, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)
        os.close(nowhere)


def _jar_options(master: str, given: str, more: list[str]) -> list[str]:
    """Return spark-submit's options for ``more`` and Delta's jars, which Ivy resolves now unless set-up did."""
    jars = sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))
    if not jars:
        spark = ".".join(version("pyspark").split(".")[:2])
        delta = ["--packages", f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"]
        return [*delta, "--jars", ",".join(more)] if more else delta
    if _is_local_master(master) and not (more or "driver-class-path" in given or "extraClassPath" in given):
        # On one machine no other process needs them, so Spark need not serve and copy them.
        return ["--driver-class-path", os.pathsep.join(jars)]
    return ["--jars", ",".join(jars + more)]


def _code_options(master: str) -> list[str]:
    """Return spark-submit's options that send the library to executors on other machines, as it is now."""
    if _is_local_master(master):
        return []
    folder = tempfile.mkdtemp(prefix="dblake-code-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder) / "dblake.zip"
    write_archive(archive)
    return ["--py-files", str(archive)]


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
