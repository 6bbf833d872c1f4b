"""Text files of rows: COPY's and OUTFILE's escapes, the header of pg_dump, and files that are cut off."""

from __future__ import annotations

import io

import pytest

from dblake.base.core.errors import Unsupported
from dblake.ingest.imports import text_lines
from dblake.ingest.imports.text_lines import (
    copy_blocks,
    copy_cells,
    copy_header,
    lines_of,
    outfile_blocks,
    outfile_cells,
)

SCRIPT = (
    b"--\n-- PostgreSQL database dump\n--\nSET x = 1;\n"
    b"COPY public.other (id) FROM stdin;\n1\n\\.\n\n"
    b'COPY public."Odd,t" (id, "a ""b""", v) FROM stdin;\n1\tx\\ty\t\\N\n2\t\\\\.\tb\n\\.\n\n--\n-- complete\n'
)


@pytest.fixture(params=[4 << 20, 7], ids=["whole", "blocks"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "_BLOCK_BYTES", request.param)


def copied(text: bytes, table: str) -> tuple[tuple[str, ...] | None, list[bytes]]:
    stream = io.BytesIO(text)
    names, first, has_end = copy_header(stream, "f", table)
    blocks = copy_blocks(stream, "f", first, has_end=has_end)
    return names, [line.as_py() for block in blocks for line in lines_of(block)]


def test_copy_header_finds_table_in_script() -> None:
    assert copied(SCRIPT, 'public."Odd,t"') == (("id", 'a "b"', "v"), [b"1\tx\\ty\t\\N\n", b"2\t\\\\.\tb\n"])
    assert copied(SCRIPT, "public.other") == (("id",), [b"1\n"])


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("text", [b"1\ta\n2\tb\n", b"1\ta\n2\tb\n\\.\n\n\n"], ids=["copy", "directory"])
def test_copy_rows_are_read_without_header(text: bytes) -> None:
    assert copied(text, "public.t") == (None, [b"1\ta\n", b"2\tb\n"])


def test_copy_cells_are_kept_escaped() -> None:
    cells = copy_cells(b"1\tx\\ty\t\\N\n2\t\t\\\\\n", 3, "f")
    assert [column.to_pylist() for column in cells] == [[b"1", b"2"], [b"x\\ty", b""], [b"\\N", b"\\\\"]]


@pytest.mark.usefixtures("block_bytes")
def test_outfile_escapes_are_resolved() -> None:
    text = b"1\t\\N\ta\\\tb\n2\tx\\\ny\\\\\t\\\\N\n3\t\\0\\\\\\\n\t\n"
    blocks = outfile_blocks(io.BytesIO(text), "f")
    rows = [row for block in blocks for row in zip(*(c.to_pylist() for c in outfile_cells(block, 3, "f")), strict=True)]
    assert rows == [(b"1", None, b"a\tb"), (b"2", b"x\ny\\", b"\\N"), (b"3", b"\0\\\n", b"")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"--\nSET x = 1;\nINSERT INTO t VALUES (1);\n", "it has no COPY of table public.t"),
        (b"COPY public.t (id) FROM stdin;\n1\n2\n", "it is cut off"),
        (b"1\n2", "it is cut off"),
    ],
    ids=["inserts", "script", "rows"],
)
def test_unusable_copy_file_is_rejected(text: bytes, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        copied(text, "public.t")


def test_cut_off_outfile_is_rejected() -> None:
    with pytest.raises(Unsupported, match="it is cut off"):
        list(outfile_blocks(io.BytesIO(b"1\ta\n2\tb\\\n"), "f"))


@pytest.mark.parametrize("text", [b"1\n", b"1\ta\tb\n", b"1\ta\tb\n2\n"])
def test_row_of_other_width_is_rejected(text: bytes) -> None:
    for cells in (copy_cells, outfile_cells):
        with pytest.raises(Unsupported, match="a row that does not consist of 2 values"):
            cells(text, 2, "f")
