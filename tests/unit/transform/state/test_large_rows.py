"""Row groups are bounded in bytes, and those of earlier versions, which were not, are read in slices."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dblake.transform.state import file_writer, files
from dblake.transform.state.file_writer import FileWriter
from dblake.transform.state.files import Columns, FileReader, data_file
from dblake.transform.state.shape import Shape, StateColumn
from dblake.transform.state.upsert import Change, upsert
from tests.unit.transform.state.large_rows import folded

COLUMNS = Columns(
    {"_key": "STRING", "_incarnation": "BIGINT", "_lsn": "BIGINT", "_seq": "BIGINT", "_deleted": "BOOLEAN",
     "_lossy": "ARRAY<STRING>", "_missing": "ARRAY<STRING>", "id": "STRING", "big": "STRING"},
    {name: name for name in ("_key", "_incarnation", "_lsn", "_seq", "_deleted", "_lossy", "_missing", "id", "big")},
)
SHAPE = Shape("public.t", (StateColumn("id", "STRING"), StateColumn("big", "STRING")), ("id",))


def write(root: Path, rows: pa.Table) -> list[files.StateFile]:
    writer = FileWriter(str(root), COLUMNS)
    writer.write(rows)
    return [data_file(add, COLUMNS) for add in writer.close()]


def group_bytes(root: Path, file: files.StateFile) -> list[int]:
    """Return the bytes of each row group in memory."""
    parquet = pq.ParquetFile(root / file.path)
    return [parquet.read_row_group(group).nbytes for group in range(parquet.num_row_groups)]


def test_row_groups_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside rows of very different size; one row larger than the bound is alone."""
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 100_000)
    sizes = [5_000] * 100 + [250_000] + [10] * 100
    (file,) = write(tmp_path, folded(range(201), sizes))
    found = group_bytes(tmp_path, file)
    assert sorted(found)[-1] < 260_000 and sorted(found)[-2] <= 100_000 and len(found) < 25


@pytest.mark.parametrize("repeats", [False, True], ids=["distinct", "dictionary"])
def test_oversized_row_group_is_changed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    """A lake of an earlier version: one row group, also one that a dictionary makes small in its file."""
    (file,) = write(tmp_path, folded(range(3000), [2_000] * 3000, repeats=repeats))
    assert len(group_bytes(tmp_path, file)) == 1
    for module in (files, file_writer):
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 500_000)
    monkeypatch.setattr(files, "_SLICED_ROWS", 100)
    with FileReader(str(tmp_path), COLUMNS, file) as reader:
        slices = list(reader.slices(0))
    assert sum(each.num_rows for each in slices) == 3000
    assert max(each.nbytes for each in slices) < 1_000_000
    change = Change(folded([5, 2999, 4000], [7] * 3, lsn=20), SHAPE)
    done = upsert(str(tmp_path), COLUMNS, [file], change, map)
    rows = dict[str, int]()
    for added in (data_file(add, COLUMNS) for add in done.adds):
        assert max(group_bytes(tmp_path, added)) <= 500_000
        with FileReader(str(tmp_path), COLUMNS, added) as reader:
            for group in range(reader.groups):
                rows |= {row["id"]: len(row["big"]) for row in reader.read(group).to_pylist()}
    assert (len(rows), rows["5"], rows["2999"], rows["4000"], rows["6"]) == (3001, 7, 7, 7, 2000)
