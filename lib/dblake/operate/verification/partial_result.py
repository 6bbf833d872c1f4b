"""The result of a chunk whose rows are compared in several parts.

Place: below ``run``. Guarantee: the order of the parts does not change the result, which counts all their rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dblake.operate.verification.ledger import ChunkDifferences, ChunkResult


@dataclass(slots=True)
class PartialResult:
    """Adds up the results of a chunk's parts; remembers the numbers of the first and the last row so far."""

    result: ChunkResult
    first: int | None = None
    last: int | None = None

    def add(self, part: ChunkResult, rows: pa.Table) -> None:
        """Add the result of some rows, which have their keys and their numbers in the chunk (``_seq``)."""
        ours, theirs = self.result.differences, part.differences
        self.result = replace(
            self.result, rows_compared=self.result.rows_compared + part.rows_compared,
            rows_skipped=self.result.rows_skipped + part.rows_skipped,
            skipped_keys=[*self.result.skipped_keys, *part.skipped_keys],
            differences=ChunkDifferences(
                [*ours.missing, *theirs.missing], [*ours.extra, *theirs.extra], [*ours.different, *theirs.different],
                Counter(ours.columns) + Counter(theirs.columns), ours.lossy + theirs.lossy,
            ),
        )
        if not rows.num_rows:
            return
        numbers = rows["_seq"].to_numpy()
        first, last = int(np.argmin(numbers)), int(np.argmax(numbers))
        if self.first is None or numbers[first] < self.first:
            self.first = int(numbers[first])
            self.result = replace(self.result, key_from=rows["_key"][first].as_py())
        if self.last is None or numbers[last] > self.last:
            self.last = int(numbers[last])
            self.result = replace(self.result, key_to=rows["_key"][last].as_py())
