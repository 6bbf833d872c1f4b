"""Imports: a table's first rows from files, with writes before and after their position and while they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.base.core.schema import Column, TableSchema
from tests.conformance.script import Script, event_lines
from tests.support.backends import Backend
from tests.support.exports import export, queue_import
from tests.support.lake import CaptureLake

T = "public.t"
ITEMS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))

AWKWARD = ["", " ", "ä", "日本", "😀", "'", '"', "\\", "\\N", "\\.", "\t", "\n", "\r\n", "a\tb", "%s", "NULL", "\\n"]


def source_rows(backend: Backend) -> dict[tuple[str | None, ...], dict[str, str | None]]:
    return {(row["id"],): row for row in backend.rows(T)}


def follow(backend: Backend, lake: CaptureLake, count: int) -> Script:
    """Create a table with ``count`` rows from before the log, and follow it without a dump."""
    backend.create(ITEMS)
    script = Script(backend, T)
    script.run([f"insert {n} a" for n in range(1, count + 1)])
    lake.capture(backend.source("public.*"))
    return script


@pytest.mark.parity
def test_import_beside_writes_equals_source(backend: Backend, lake: CaptureLake, tmp_path: Path) -> None:
    """Rows that change after the position keep their changes, deleted ones stay deleted."""
    script, source = follow(backend, lake, 12), backend.source("public.*")
    script.run(["update 1 before", "delete 2"])
    taken = export(backend, T, tmp_path / "t")
    script.run(["update 3 after", "delete 4", "insert 90 new", "rekey 5 50"])
    lake.capture(source)
    queue_import(lake, source, T, taken)
    late = iter(["update 6 late", "delete 7", "update 90 late", "insert 4 again"])

    def write() -> None:
        script.run([line] if (line := next(late, "")) else [])

    lake.capture(source, chunk_size=3, steps={("every low", T): write})
    assert lake.state(T) == source_rows(backend)
    assert sorted(event_lines([e for e in lake.reconciled()[0] if e.op == "r"], T)) == [
        "r 1 before", "r 10 a", "r 11 a", "r 12 a", "r 8 a", "r 9 a",
    ]
    assert [(dump["state"], dump["rows"]) for dump in lake.dumps()] == [("done", 11)]


def test_import_keeps_text_of_every_character(backend: Backend, lake: CaptureLake, tmp_path: Path) -> None:
    backend.create(ITEMS)
    with backend.begin() as transaction:
        for number, value in enumerate([*AWKWARD, None], start=1):
            transaction.insert(T, {"id": str(number), "v": value})
    source = backend.source("public.*")
    lake.capture(source)
    taken = export(backend, T, tmp_path / "t")
    lake.capture(source)
    queue_import(lake, source, T, taken)
    lake.capture(source, chunk_size=5)
    assert lake.state(T) == source_rows(backend)


def test_import_drops_rows_before_truncate(backend: Backend, lake: CaptureLake, tmp_path: Path) -> None:
    script, source = follow(backend, lake, 4), backend.source("public.*")
    taken = export(backend, T, tmp_path / "t")
    script.run(["truncate", "insert 9 z"])
    lake.capture(source, redump=False)
    queue_import(lake, source, T, taken)
    lake.capture(source, redump=False)
    assert lake.state(T) == source_rows(backend) == {("9",): {"id": "9", "v": "z"}}


def test_import_replaces_lost_rows_of_earlier_dump(backend: Backend, lake: CaptureLake, tmp_path: Path) -> None:
    """Its end deletes keys from before the position that the files do not have, as that of any whole dump."""
    script, source = follow(backend, lake, 4), backend.source("public.*")
    lake.dump(T)
    lake.capture(source)
    backend.delete_unlogged(T, {"id": "3"})
    script.run(["update 1 x"])
    lake.capture(source)
    taken = export(backend, T, tmp_path / "t")
    script.run(["insert 9 z"])
    lake.capture(source)
    with pytest.raises(PrerequisitesNotMet, match="has its rows already"):
        queue_import(lake, source, T, taken)
    queue_import(lake, source, T, taken, replaces=True)
    lake.capture(source)
    assert lake.state(T) == source_rows(backend)
    assert set(lake.state(T)) == {("1",), ("2",), ("4",), ("9",)}
