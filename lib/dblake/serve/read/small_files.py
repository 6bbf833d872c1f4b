"""Small landing files → one temporary file, so that a live reading decodes many batches as one.

Place: between ``reconcile.landing_files``, which lists files, and ``tail``. Capture's low-latency profile lands a file
for every few commits; to open and decode each alone takes longer than all else. Guarantee: the same rows in the same
order, and nothing is left behind: the temporary file ends with the block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from dblake.base.lake.files import filesystem
from dblake.landing.columns import LANDING
from dblake.transform.reconcile.landing_files import LandingFile

_SMALL_BYTES = 256 << 10
_GROUP_ROWS = 100_000


@contextmanager
def merged_files(files: Sequence[LandingFile]) -> Iterator[list[LandingFile]]:
    """Yield files with the rows of ``files``: runs of small ones are one file each, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="dblake-tail-") as folder:
        found: list[LandingFile] = []
        for is_small, run in groupby(files, lambda file: file.size <= _SMALL_BYTES):
            some = list(run)
            found += [_merge(some, Path(folder, f"{len(found)}.parquet"))] if is_small and len(some) > 1 else some
        yield found


def _merge(files: Sequence[LandingFile], into: Path) -> LandingFile:
    system, _ = filesystem(files[0].path)
    paths = [filesystem(file.path)[1] for file in files]
    rows = ds.dataset(paths, schema=LANDING, format="parquet", filesystem=system).to_table()
    pq.write_table(rows, into, compression="none", row_group_size=_GROUP_ROWS)
    return LandingFile(str(into), into.stat().st_size, max(file.last_batch for file in files))
