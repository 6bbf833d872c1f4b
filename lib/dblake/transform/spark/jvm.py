"""Start the JVM of Spark: jars, our code for executors, and options of the process.

Place: below ``session``. Python starts Spark's own ``spark-submit``, which reads ``conf/spark-defaults.conf`` and the
options in ``PYSPARK_SUBMIT_ARGS``, where ``spark-submit.sh`` puts ``--master`` and ``--spark-conf``. Guarantee: options
that a user gives come last, so that they win.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from dblake.base.core.errors import ConfigError
from dblake.base.core.processes import defer_signals
from dblake.installation import application_home, import_paths, write_archive
from dblake.transform.spark import class_data, startup
from dblake.transform.spark.master import MASTER, SUBMIT_ARGS, configured_master, is_local_master

GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set by a ``spark-submit`` that started this process."""


def start_jvm(settings: dict[str, str], more_jars: list[str], *, is_short: bool) -> dict[str, str]:
    """Start the JVM and return every setting given in code, as an option or in spark-defaults.conf.

    Raises ConfigError if there is no Java, and PySpark's error for a JVM that ends at its start.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is None and GATEWAY not in os.environ:
        os.environ["SPARK_CONF_DIR"] = str(application_home() / "conf")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark's Python workers start with an empty module path.
        os.environ["PYTHONPATH"] = os.pathsep.join([*import_paths(), *filter(None, [os.environ.get("PYTHONPATH")])])
        master = settings.get(MASTER) or configured_master()
        user_options = os.environ.get(SUBMIT_ARGS, "pyspark-shell")
        options = shlex.join([*_jar_options(master, user_options, more_jars), *_code_options(master)])
        os.environ[SUBMIT_ARGS] = f"{options} {user_options}"
        if startup.find_java() is None:
            raise ConfigError("there is no Java", next_step="install Java 17 or newer, or correct JAVA_HOME")
        startup.set_java_options(is_short=is_short and is_local_master(master))
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


def _jar_options(master: str, user_options: str, more: list[str]) -> list[str]:
    """Return spark-submit's options for ``more`` and Delta's jars, which Ivy resolves now unless set-up did.

    Without other jars the class path is the one of the class-data archive.
    """
    jars = sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))
    if not jars:
        spark = ".".join(version("pyspark").split(".")[:2])
        delta = ["--packages", f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"]
        return [*delta, "--jars", ",".join(more)] if more else delta
    has_class_path = "driver-class-path" in user_options or "extraClassPath" in user_options
    if is_local_master(master) and not (more or has_class_path):
        # On one machine no other process needs them, so Spark need not serve and copy them.
        return ["--driver-class-path", os.pathsep.join(jars), *class_data.submit_options()]
    return ["--jars", ",".join(jars + more)]


def _code_options(master: str) -> list[str]:
    """Return spark-submit's options that send the library to executors on other machines, as it is now."""
    if is_local_master(master):
        return []
    folder = tempfile.mkdtemp(prefix="dblake-code-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder) / "dblake.zip"
    write_archive(archive)
    return ["--py-files", str(archive)]
