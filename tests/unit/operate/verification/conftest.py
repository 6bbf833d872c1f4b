"""A memory database's copy, made without a server or a JVM, and its verification step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from dblake.ingest.capture.dump_queue import queue_verification
from dblake.ingest.mask.masks import Masks
from dblake.ingest.mask.source import MaskedSource
from dblake.ingest.source.memory.database import MemoryDatabase
from dblake.ingest.source.memory.source import MemorySource
from dblake.operate.verification.requests import Verification
from dblake.operate.verification.state_rows import TableState
from tests.support.copied import CopiedLake
from tests.support.steps import Steps

T = "public.t"
SCHEMA = TableSchema(T, (Column("id", "text", False, 1), Column("v", "text"), Column("big", "text")))
KEYS = [str(number) for number in range(1, 10)]

Rows = list[dict[str, Any]]


class Copy:
    """A memory database with nine rows, and its copy."""

    def __init__(self, folder: Path, masks: Masks | None = None) -> None:
        self.database, self.lake, self._masks = MemoryDatabase(), CopiedLake(folder), masks
        self.database.create_table(SCHEMA, toasted=("big",))
        for key in KEYS:
            with self.database.begin() as transaction:
                transaction.insert(T, {"id": key, "v": "a", "big": "xxx"})
        self.database.make_slot("shop")
        self.lake.dump(T)
        self.follow()

    @property
    def source(self) -> Source:
        source = MemorySource(self.database, name="shop", patterns=["public.*"])
        return MaskedSource(source, self._masks) if self._masks else source

    def write(self, *changes: Callable[[Any], object]) -> None:
        with self.database.begin() as transaction:
            for change in changes:
                change(transaction)

    def update(self, key: str, value: str) -> None:
        self.write(lambda t: t.update(T, {"id": key}, {"v": value}))

    def follow(self, steps: Steps | None = None, chunk_size: int = 4) -> None:
        """Capture, reconcile and fold everything."""
        self.lake.capture(self.source, steps=steps, chunk_size=chunk_size)
        self.lake.copy()

    def corrupt(self, change: Callable[[Rows], Rows]) -> None:
        path = self.lake.paths.state("public", "t")
        rows = DeltaTable(path).to_pyarrow_table()
        write_deltalake(path, pa.Table.from_pylist(change(rows.to_pylist()), rows.schema), mode="overwrite")

    def start(
        self, *, repair: bool = False, sample: float = 1.0, columns: int | None = 1, max_removed: float | None = None
    ) -> Verification:
        queued = queue_verification(self.lake.store, [T], sample=sample)
        return Verification(self.lake.paths, self.lake.store, queued, {T: columns}, repair, max_removed=max_removed)

    def verify(
        self, steps: Steps | None = None, verification: Verification | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return the result of a verification; ``steps`` run in its first round's windows."""
        verification = verification or self.start(**options)
        for number in range(20):
            self.follow(steps if number == 0 else None)
            if verification.advance():
                (result,) = verification.results()
                return result
        raise AssertionError("the verification does not end")

    def live_keys(self) -> list[str]:
        return sorted(key for part in TableState(self.lake.paths, T).live_keys() for key in part.to_pylist())

    def ledger(self) -> Rows:
        rows: Rows = DeltaTable(self.lake.paths.verifications).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: row["batch"])


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def found(result: dict[str, Any]) -> tuple[int, int, int]:
    return result["missing"], result["extra"], result["different"]


def set_value(rows: Rows, key: str, **values: object) -> Rows:
    return [row | values if row["id"] == key else row for row in rows]
