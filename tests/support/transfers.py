"""Transfers between two tables: an invariant that every consistent reading keeps, and writers that try to break it.

Every transaction takes an amount from an account of one table and gives it to an account of the other, so the sum over
both tables never changes. Landing batches end anywhere, also inside a transaction.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.schemas import SCHEMAS, schema_row
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached
from dblake.serve.read.reading import LakeReading
from dblake.serve.read.rows import read_rows
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.state.run import run_state
from tests.support.landed import Change, landing_row
from tests.support.landed import schema_row as landed_schema
from tests.support.readings import NO_SPARK, SOURCE, append_batch
from tests.support.schemas import table_schema

TABLES = ("public.checking", "public.saving")
ACCOUNTS = 20
TOTAL = 2 * ACCOUNTS * 1000
SCHEMA_OF = {table: table_schema(table, "id integer key", "amount integer") for table in TABLES}
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def sum_of(reading: LakeReading) -> int:
    """Return the sum over both tables."""
    return sum(
        sum(part["amount"].to_pylist()) for table in TABLES for part in read_rows(reading.table(table))
    )


@dataclass
class Bank:
    """The bank's tables in a folder. ``stop`` ends the writers; ``failures`` has what they met."""

    folder: Path
    seed: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = Paths(str(self.folder), SOURCE)
        self._draw = random.Random(self.seed)
        self._amounts = {(table, n): 1000 for table in TABLES for n in range(ACCOUNTS)}
        self._incarnation, self._lsn, self._batch, self._reconciled = 1, 0, 0, 0
        self._waiting: list[Change] = []
        self._landed: dict[int, list[Change]] = {}
        self._landing = Landing(self.paths.landing, SOURCE)
        for table in TABLES:
            self._change([(table, n, "c") for n in range(ACCOUNTS)])
        # Transactions 10 and 20 open the accounts.
        self.land(len(self._waiting))

    def restart(self) -> None:
        """Begin another incarnation of the log."""
        self._incarnation += 1
        self._lsn = 10

    def transfer(self) -> None:
        """Commit one transfer at the source."""
        given, taken = self._draw.sample(TABLES, 2)
        amount = self._draw.randint(1, 100)
        source, target = (given, self._draw.randrange(ACCOUNTS)), (taken, self._draw.randrange(ACCOUNTS))
        self._amounts[source] -= amount
        self._amounts[target] += amount
        self._change([(*source, "u"), (*target, "u")])

    def land(self, count: int) -> None:
        """Land so many of the changes that wait, as one batch."""
        changes, self._waiting = self._waiting[:count], self._waiting[count:]
        self._batch += 1
        rows = [landed_schema(1, 1, schema) for schema in SCHEMA_OF.values()] if self._batch == 1 else []
        changes = [Change(self._batch, 1, c.position, c.txid, c.table, c.op, c.key, c.after, last=c.last)
                   for c in changes]
        rows += [landing_row(change, SCHEMA_OF) | {"committed_at": when(change.position.lsn)} for change in changes]
        self._landed[self._batch] = changes
        reached = Reached(self._batch, 1, ServerIdentity("server", "log"), ResumePoint(self._incarnation, "0/0"))
        self._landing.commit(pa.Table.from_pylist(rows, schema=LANDING), reached)

    def reconcile(self) -> None:
        """Append the events of all landed batches, one commit for each."""
        for _ in range(self._batch - self._reconciled):
            batch = self._reconciled + 1
            schemas = [schema_row(s, Position(1, 0, 0), 1) for s in SCHEMA_OF.values()] if batch == 1 else []
            append_batch(self.paths.schemas, schemas, SCHEMAS, batch)
            append_batch(self.paths.events, [_event(change) for change in self._landed[batch]], EVENT_COLUMNS, batch)
            self._reconciled = batch

    def fold_state(self) -> None:
        """Fold the new events into state, one table after the other."""
        for result in run_state(NO_SPARK, self.paths, parallel=1, batches_per_step=2):
            assert result.error is None, str(result.error)

    def compact(self) -> None:
        """Rewrite state's files, as maintenance does, beside merges."""
        for table in TABLES:
            path = self.paths.state(*table.split("."))
            if DeltaTable.is_deltatable(path):
                with commit_lock(path):
                    DeltaTable(path).optimize.compact()

    @contextmanager
    def running(self, pause: float = 0.05) -> Iterator[None]:
        """Transfer, land, reconcile, fold and compact at the same time, each in a thread with pauses."""
        threads = [threading.Thread(target=self._repeat, args=(task, seconds)) for task, seconds in (
            (self._work, pause), (self.reconcile, pause), (self.fold_state, pause), (self.compact, 6 * pause),
        )]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures

    def _work(self) -> None:
        for _ in range(self._draw.randint(1, 4)):
            self.transfer()
        self.land(self._draw.randint(1, len(self._waiting)))

    def _repeat(self, task: Callable[[], None], pause: float) -> None:
        try:
            while not self.stop.wait(pause):
                task()
        except Exception as error:  # noqa: BLE001 - a thread's errors fail the test
            self.failures.append(error)

    def _change(self, rows: list[tuple[str, int, str]]) -> None:
        self._lsn += 10
        for n, (table, account, op) in enumerate(rows):
            after = {"id": str(account), "amount": str(self._amounts[table, account])}
            at, last = Position(self._incarnation, self._lsn, 2 * n), n + 1 == len(rows)
            self._waiting.append(Change(0, 1, at, self._lsn, table, op, (str(account),), after, last=last))


def when(lsn: int) -> datetime:
    """Return a transaction's commit time; each fifth one's clock is behind."""
    return _EPOCH + timedelta(seconds=lsn - (25 if lsn // 10 % 5 == 4 else 0))


def _event(change: Change) -> dict[str, Any]:
    at = change.position
    return {
        "incarnation": at.incarnation, "lsn": at.lsn, "seq": at.seq, "table": change.table, "op": change.op,
        "key": [("id", (change.key or ("",))[0])], "before": None, "after": list((change.after or {}).items()),
        "schema_id": SCHEMA_OF[change.table].schema_id, "txid": change.txid, "committed_at": when(at.lsn),
        "last_in_txn": change.last, "origin": "log", "batch": change.batch, "undecoded": [], "partial": False,
    }
