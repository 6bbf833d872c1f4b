"""Every PostgreSQL type: a row of imported files and its twin from the log have equal canonical text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import postgres_values as values
from tests.support.backends import PostgresBackend
from tests.support.exports import export, queue_import
from tests.support.lake import CaptureLake
from tests.support.parity import TABLE, columns, rows
from tests.support.postgres import Database


@pytest.fixture
def backend(database: Database) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(database)
    yield backend
    backend.close()


@pytest.mark.parametrize("format_", ["pg_dump", "csv"])
def test_imported_row_has_text_of_log(backend: PostgresBackend, tmp_path: Path, format_: str) -> None:
    values.create(backend.database)
    values.insert(backend.database, 1)
    lake, source = CaptureLake(tmp_path), backend.source("public.*")
    lake.capture(source)
    taken = export(backend, TABLE, tmp_path / "rows", format_)
    lake.capture(source)
    queue_import(lake, source, TABLE, taken)
    lake.capture(source)
    read = {int(change["key"]["id"]): change["after"] for change in lake.decoded() if change["op"] == "r"}
    wrong = [
        (type_, value and value.text[:60], image[name] and image[name][:60])
        for number, row in enumerate(rows(values.CASES), 1) for image in [read.pop(number)]
        for name, type_ in columns(values.CASES).items() for value in [row.get(name)]
        if image[name] != (value.text if value else None)
    ]
    assert (wrong, read) == ([], {})
