"""Small landing files are read as one, with the same rows in the same order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dblake.base.core.position import Position
from dblake.landing.columns import LANDING
from dblake.serve.read.small_files import merged_files
from dblake.transform.reconcile.landing_files import LandingFile, LandingFiles
from tests.support.landed import Change, land
from tests.support.schemas import table_schema

TABLE = table_schema("public.t", "id text key")
BATCHES = 7


@pytest.fixture
def files(tmp_path: Path) -> list[LandingFile]:
    changes = [
        Change(n, 1, Position(1, 10 * n), n, TABLE.table, "c", (str(n),), {"id": str(n)}, last=True)
        for n in range(1, BATCHES + 1)
    ]
    land(f"{tmp_path}/landing", "shop", changes, {TABLE.table: TABLE})
    return LandingFiles(f"{tmp_path}/landing", "shop").files(1, BATCHES)


def rows(files: list[LandingFile]) -> list[dict[str, Any]]:
    tables = [pq.read_table(file.path, partitioning=None).cast(LANDING) for file in files]
    found: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return found


@pytest.mark.parametrize(("large", "expected"), [
    ([], [(1, 7)]), ([3], [(1, 3), (4, 4), (5, 7)]), ([0, 6], [(1, 1), (2, 6), (7, 7)]),
    ([1], [(1, 1), (2, 2), (3, 7)]),
    (range(7), [(n, n) for n in range(1, 8)]),
])
def test_merged_files_have_same_rows_in_order(
    files: list[LandingFile], large: list[int], expected: list[tuple[int, int]]
) -> None:
    assert len(files) == BATCHES
    files = [replace(file, size=1 << 30) if number in large else file for number, file in enumerate(files)]
    with merged_files(files) as merged:
        batches = [[row["batch"] for row in rows([file])] for file in merged]
        assert [(found[0], found[-1]) for found in batches] == expected
        assert [file.last_batch for file in merged] == [last for _, last in expected]
        assert rows(merged) == rows(files)
    kept = {file.path for file in files}
    assert [Path(file.path).exists() for file in merged] == [file.path in kept for file in merged]
