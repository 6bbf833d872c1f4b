"""A busy database, its capture in a thread, and reconcile and state that follow it in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from dblake.base.core.names import split_qualified
from dblake.base.core.source import Source
from dblake.ingest.capture.dump_queue import queue_verification
from dblake.ingest.capture.loop import Until
from dblake.operate.verification.requests import Verification
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.lake import CaptureLake

Rows = list[dict[str, Any]]


class VerifiedLake(CaptureLake):
    """A copy that follows its source. Use it within ``following``."""

    def __init__(self, folder: Path, source: Source, spark: SparkSession) -> None:
        super().__init__(folder)
        self.database, self._spark = source, spark

    @contextmanager
    def following(self, chunk_size: int = 15) -> Iterator[None]:
        """Run capture within the block."""
        stop, failures = threading.Event(), list[BaseException]()

        def run() -> None:
            try:
                self.capture(self.database, until=Until(), stop=stop, chunk_size=chunk_size, commits_per_second=10.0,
                             heartbeat_seconds=0.5)
            except BaseException as error:  # noqa: BLE001 - raised by the block's end
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
            if failures:
                raise failures[0]

    def advance(self) -> None:
        """Run reconcile and state once."""
        reconcile_once(self._spark, self.paths)
        for result in run_state(self._spark, self.paths, parallel=2):
            assert result.error is None, result.error

    def dump_and_wait(self, *tables: str) -> None:
        """Dump tables and bring state up to that."""
        dump_id = self.dump(*tables)
        self._wait(lambda: all(each["state"] == "done" for each in self.dumps() if each["id"] == dump_id))
        self.advance()

    def verify(self, *tables: str, key_columns: int = 1, repair: bool = False) -> list[dict[str, Any]]:
        """Return the result of a verification, while reconcile and state run."""
        verification_id = queue_verification(self.store, tables)
        keys = dict.fromkeys(tables, key_columns)
        verification = Verification(self.paths, self.store, verification_id, keys, repair)

        def is_done() -> bool:
            self.advance()
            return verification.advance()

        self._wait(is_done)
        self.remaining = verification.remaining()
        return verification.results()

    def live_rows(self, table: str) -> list[tuple[str | None, ...]]:
        """Return the live rows of a state table as texts, in order."""
        rows = DeltaTable(self.paths.state(*split_qualified(table))).to_pyarrow_table().to_pylist()
        live = [row for row in rows if not row["_deleted"]]
        texts = [tuple(None if value is None else str(value) for name, value in row.items() if name[0] != "_")
                 for row in live]
        return sorted(texts, key=lambda row: tuple(map(str, row)))

    def corrupt(self, table: str, change: Callable[[Rows], Rows]) -> None:
        """Replace the rows of a state table by what ``change`` makes of them."""
        path = self.paths.state(*split_qualified(table))
        rows = DeltaTable(path).to_pyarrow_table()
        changed = pa.Table.from_pylist(change(rows.to_pylist()), rows.schema)
        write_deltalake(path, changed, mode="overwrite")

    @staticmethod
    def _wait(is_done: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not is_done():
            assert time.monotonic() < deadline, "nothing has happened for too long"
            time.sleep(0.3)


def counts(results: Sequence[dict[str, Any]]) -> list[tuple[int, int, int, int]]:
    """Return missing, extra, different and repaired rows of each result."""
    return [(each["missing"], each["extra"], each["different"], each["repaired"]) for each in results]
