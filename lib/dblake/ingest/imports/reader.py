"""Chunks of rows of an import's files, as a chunk reader takes them in place of a table's.

Guarantee: the place behind a chunk (file and row) resumes exactly behind its last row, also in another process. Rows
that follow one another are read once; only a place that is not the next one costs reading the file up to there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from dblake.base.core.schema import TableSchema
from dblake.base.core.source import SuppliedRows
from dblake.ingest.imports.files import read_blocks
from dblake.ingest.imports.spec import ImportSpec

Place = tuple[int, int]
"""The number of a file, and of a row in it."""


class FileRows:
    """The rows of one import, read chunk by chunk."""

    def __init__(self, spec: ImportSpec) -> None:
        self._spec = spec
        self._blocks: Iterator[tuple[Place, pa.BinaryArray]] = iter(())
        self._opened: tuple[TableSchema, str] | None = None
        self._waiting: deque[tuple[Place, pa.BinaryArray]] = deque()
        self._next: Place | None = None

    def chunk(self, after: tuple[str, ...] | None, limit: int) -> SuppliedRows:
        """Return a supplier of up to ``limit`` rows behind a place; its last key is the place behind them."""
        start = (int(after[0]), int(after[1])) if after else (0, 0)

        def supply(
            schema: TableSchema, payload_format: str, deliver: Callable[[pa.BinaryArray, TableSchema], None]
        ) -> tuple[int, tuple[str, ...] | None]:
            return self._supply(start, limit, schema, payload_format, deliver)

        return supply

    def _supply(
        self, start: Place, limit: int, schema: TableSchema, payload_format: str,
        deliver: Callable[[pa.BinaryArray, TableSchema], None],
    ) -> tuple[int, tuple[str, ...] | None]:
        if self._next != start or self._opened != (schema, payload_format):
            self._blocks, self._opened = self._read(start, schema, payload_format), (schema, payload_format)
            self._waiting.clear()
        # Until the chunk is complete no place is the next one: a failure reads it again.
        self._next, rows, last = None, 0, start
        while rows < limit:
            if not self._waiting:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._waiting.append(block)
            (number, row), payload = self._waiting.popleft()
            taken, rest = payload[: limit - rows], payload[limit - rows :]
            if len(rest):
                self._waiting.appendleft(((number, row + len(taken)), rest))
            deliver(taken, schema)
            rows, last = rows + len(taken), (number, row + len(taken))
        self._next = last
        return rows, (str(last[0]), str(last[1])) if rows else None

    def _read(self, start: Place, schema: TableSchema, payload_format: str) -> Iterator[tuple[Place, pa.BinaryArray]]:
        first, skip = start
        for number, file in enumerate(self._spec.files[first:], first):
            row = skip if number == first else 0
            for payload in read_blocks(self._spec, file, schema, payload_format, row):
                if len(payload):
                    yield (number, row), payload
                    row += len(payload)
