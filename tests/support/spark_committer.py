"""A Spark driver in a process of its own that commits to a Delta table on S3, again and again.

Two of them share no memory, so only the store decides between their commits. The log store is given: dblake's, or
Delta's ordinary one, which loses commits and shows that a test of commits can fail. A commit is a Delta transaction
like any other, but adds no file: it records a number as a transaction identifier. Most of its time is spent on reading
the table; so commits also come as log entries alone, which the log store writes as it does for a transaction.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyarrow import fs

from dblake.base.core.processes import end_with_parent, stop_process
from dblake.base.lake.files import filesystem
from dblake.base.lake.storage import Location, Storage, join
from tests.support.s3 import storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN_LOG_STORE = "dblake.S3LogStore"
ORDINARY_LOG_STORE = "io.delta.storage.S3SingleDriverLogStore"
_LOG_STORE = "spark.delta.logStore.s3.impl"


class SparkCommitter:
    """One driver. It reaches the store at ``port``, which may be a proxy's. ``reported`` first waits for its start."""

    def __init__(self, port: int, log_store: str = OWN_LOG_STORE) -> None:
        self._port, self._log_store = port, log_store

    def start_commits(self, table: str, numbers: Sequence[int], *, entries: bool = False) -> None:
        """Begin to commit the numbers, in order; with ``entries`` as log entries alone."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([table, list(numbers), entries]) + "\n")
        self._process.stdin.flush()

    def reported(self) -> list[int]:
        """Wait until the numbers are committed and return those that Spark reports as committed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended with {self._process.wait()}"
        reported: list[int] = json.loads(line)
        return reported

    def freeze(self) -> None:
        """Stop all threads of Python and of the JVM until ``thaw``."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [*end_with_parent(), sys.executable, "-m", "tests.support.spark_committer", str(self._port),
             self._log_store],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        stop_process(self._process, group=True)


def commit_number(spark: SparkSession, table: str, number: int) -> None:
    """Commit a number by Spark, as the transaction identifier that ``committed_numbers`` reads."""
    jvm: Any = spark._jvm
    delta, none = jvm.org.apache.spark.sql.delta, jvm.scala.Option.empty()
    actions = jvm.java.util.ArrayList()
    actions.add(delta.actions.SetTransaction(str(number), 1, none))
    manual = getattr(delta, "DeltaOperations$ManualUpdate$").__getattr__("MODULE$")
    transaction = delta.DeltaLog.forTable(spark._jsparkSession, str(table)).startTransaction(none, none)
    transaction.commit(jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq(), manual)


class EntryWriter:
    """Writes log entries through Delta's log store, each at the first version that the store accepts."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        jvm: Any = spark._jvm
        self._jvm, self._table, self._version = jvm, table, 1
        delta_log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
        self._store, self._settings = delta_log.store(), delta_log.newDeltaHadoopConf()

    def commit(self, number: int) -> None:
        """Commit a number."""
        from py4j.protocol import Py4JJavaError

        lines = self._jvm.java.util.ArrayList()
        # As Delta's own: each commit has an identifier.
        lines.add(json.dumps({"commitInfo": {
            "timestamp": int(time.time() * 1000), "operation": "Manual Update", "operationParameters": {},
            "txnId": str(uuid.uuid4()),
        }}))
        lines.add(json.dumps({"txn": {"appId": str(number), "version": 1}}))
        while True:
            path = self._jvm.org.apache.hadoop.fs.Path(f"{self._table}/_delta_log/{self._version:020}.json")
            content = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
            self._version += 1
            try:
                self._store.write(path, content, False, self._settings)
            except Py4JJavaError as error:
                if "FileAlreadyExistsException" not in str(error):
                    raise
            else:
                return


def committed_numbers(table: str) -> list[int]:
    """Return all committed numbers, in order, from every entry of the table's log."""
    system, folder = filesystem(join(table, "_delta_log"))
    names = [entry.path for entry in system.get_file_info(fs.FileSelector(folder))]

    def read(path: str) -> list[int]:
        with system.open_input_stream(path) as entry:
            actions = map(json.loads, entry.read().decode().splitlines())
            return [int(action["txn"]["appId"]) for action in actions if "txn" in action]

    with ThreadPoolExecutor(4) as pool:
        entries = [name for name in names if re.search(r"/\d{20}\.json$", name)]
        return sorted(number for numbers in pool.map(read, entries) for number in numbers)


def serve(port: int, log_store: str) -> None:
    """Commit what stdin names, a table and numbers as JSON in each line, and print the numbers that are committed."""
    import dblake.transform.spark.storage
    from dblake.transform.spark.session import spark_session

    reached: Storage = storage(port)
    # What a session of a user's own without dblake's settings would have.
    settings = reached.spark_settings() | {_LOG_STORE: log_store}
    dblake.transform.spark.storage.storage_settings = lambda warehouse: settings
    spark = spark_session(
        "committer", Location("s3://none/lake", reached),
        **{"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.sql.codegen.wholeStage": "false",
           "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
    )
    print("[]", flush=True)
    for line in sys.stdin:
        table, numbers, entries = json.loads(line)
        done, writer = [], EntryWriter(spark, table) if entries else None
        for number in numbers:
            try:
                if writer:
                    writer.commit(number)
                else:
                    commit_number(spark, table, number)
            except Exception as error:  # noqa: BLE001 - a log store that loses commits also fails in other ways
                print(f"{number}: {str(error)[:200]}", file=sys.stderr, flush=True)
            else:
                done.append(number)
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
