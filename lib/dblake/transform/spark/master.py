"""The master that Spark runs on: which one is configured, and what a ``local`` one needs.

Place: below ``session`` and ``jvm``; reads options and ``conf/spark-defaults.conf``, and starts nothing.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import tempfile
from itertools import pairwise

from dblake.installation import spark_defaults

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
MASTER = "spark.master"
EVERY_CORE = "local[*]"


def is_local_master(master: str | None) -> bool:
    """Return True if Spark's executors are this process."""
    return master == "local" or (master or "").startswith("local[")


def configured_master() -> str:
    """Return the master with which Spark will start."""
    options = shlex.split(os.environ.get(SUBMIT_ARGS, ""))
    for name, value in reversed(list(pairwise(options))):
        if name == "--master":
            return value
        if name == "--conf" and value.startswith(f"{MASTER}="):
            return value.partition("=")[2]
    return spark_defaults().get(MASTER, EVERY_CORE)


def local_settings(master: str) -> dict[str, str]:
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
