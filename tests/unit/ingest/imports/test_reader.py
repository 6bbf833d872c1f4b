"""Chunks of files: every format gives the same rows, from any place on, and other columns are rejected."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from dblake.base.core.errors import Unsupported
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.imports import files as files_module
from dblake.ingest.imports.files import require_columns
from dblake.ingest.imports.reader import FileRows
from dblake.ingest.imports.spec import ImportSpec
from dblake.landing.columns import COPY
from dblake.landing.control import DumpStart

SCHEMA = TableSchema("public.t", (Column("id", "integer", False, 1), Column("v", "text")))
LINES = [b"%d\tv%d\n" % (number, number) for number in range(1, 11)]


@pytest.fixture(params=["parquet", "csv", "pg_dump", "pg_dump.gz"])
def spec(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImportSpec:
    """Two files of six and four rows, read in small blocks."""
    format_, _, suffix = request.param.partition(".")
    monkeypatch.setattr(files_module, "_ROWS", 4)
    paths = []
    for name, lines in (("a", LINES[:6]), ("b", LINES[6:])):
        path = tmp_path / (name + (f".{suffix}" if suffix else ""))
        table = pa.table({"v": [line[:-1].split(b"\t")[1].decode() for line in lines],
                          "id": [int(line.split(b"\t")[0]) for line in lines]})
        if format_ == "parquet":
            pq.write_table(table, path, row_group_size=3)
        elif format_ == "csv":
            pa_csv.write_csv(table, path)
        else:
            with pa.output_stream(str(path), compression="detect") as out:
                out.write(b"COPY public.t (v, id) FROM stdin;\n")
                out.write(b"".join(b"\t".join(reversed(line[:-1].split(b"\t"))) + b"\n" for line in lines) + b"\\.\n")
        paths.append(str(path))
    return ImportSpec(format_, tuple(paths), DumpStart(1, 1, 0), SCHEMA.schema_id, 1)


def read(rows: FileRows, after: tuple[str, ...] | None, limit: int) -> tuple[list[bytes], tuple[str, ...] | None]:
    delivered: list[bytes] = []
    count, last = rows.chunk(after, limit)(SCHEMA, COPY, lambda payload, _: delivered.extend(payload.to_pylist()))
    assert count == len(delivered)
    return delivered, last


@pytest.mark.parametrize("limit", [1, 3, 4, 7, 10, 11])
def test_chunks_follow_one_another(spec: ImportSpec, limit: int) -> None:
    rows, after, read_lines = FileRows(spec), None, []
    while True:
        lines, last = read(rows, after, limit)
        read_lines += lines
        if len(lines) < limit:
            break
        after = last
    assert read_lines == LINES


def test_chunk_resumes_at_any_place_in_new_reader(spec: ImportSpec) -> None:
    places: list[tuple[str, ...] | None] = [None]
    for _ in LINES:
        places.append(read(FileRows(spec), places[-1], 1)[1])
    for number, place in enumerate(places):
        assert read(FileRows(spec), place, 100)[0] == LINES[number:]


def test_failed_delivery_is_read_again(spec: ImportSpec) -> None:
    rows = FileRows(spec)
    _, after = read(rows, None, 2)

    def fail(payload: pa.BinaryArray, schema: TableSchema) -> None:
        del payload, schema
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rows.chunk(after, 3)(SCHEMA, COPY, fail)
    assert read(rows, after, 3)[0] == LINES[2:5]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["id", "v", "w"], "it has columns that table public.t has not: w"),
        (["id"], "it lacks columns of table public.t: v"),
        (["id", "v", "v"], "it has a column twice"),
    ],
)
def test_other_columns_are_rejected(names: list[str], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        require_columns("f", names, SCHEMA)


def test_missing_file_is_rejected_by_name(spec: ImportSpec) -> None:
    Path(spec.files[1]).unlink()
    with pytest.raises(Unsupported, match="does not exist where capture runs"):
        read(FileRows(spec), None, 100)


def test_damaged_file_is_rejected_without_values(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("id,v\n1,secret\n2,secret,3\n")
    with pytest.raises(Unsupported, match="it is damaged, or not of the given format") as error:
        read(FileRows(ImportSpec("csv", (str(path),), DumpStart(1, 1, 0), SCHEMA.schema_id, 1)), None, 10)
    assert "secret" not in str(error.value)
