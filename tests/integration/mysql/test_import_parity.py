"""Every type of MariaDB and MySQL: a row of imported files and its twin from the log have equal canonical text."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.ingest.imports.mysql_values import AMBIGUOUS_CHARSETS
from tests.support import mysql_values as values
from tests.support.exports import export, queue_import
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.parity import TABLE, columns, rows


def is_rejected(type_: str) -> bool:
    """Return True for the types that ``mysqldump`` files do not hold exactly."""
    return type_.startswith("float") or any(name in type_.lower() for name in AMBIGUOUS_CHARSETS)


@pytest.mark.slow
def test_imported_row_has_text_of_log(mysql_server: MysqlServer, tmp_path: Path) -> None:
    cases = values.cases(mysql_server.flavour)
    values.create(mysql_server)
    values.insert(mysql_server, 1)
    rejected = [name for name, type_ in columns(cases).items() if is_rejected(type_)]
    mysql_server.run(*(f"ALTER TABLE {TABLE} DROP COLUMN {name}" for name in rejected))
    backend, lake = MysqlBackend(mysql_server), CaptureLake(tmp_path)
    source = backend.source("public.*")
    lake.capture(source)
    taken = export(backend, TABLE, tmp_path / "rows")
    lake.capture(source)
    queue_import(lake, source, TABLE, taken)
    lake.capture(source)
    assert [dump["error"] for dump in lake.dumps()] == [None]
    read = {int(change["key"]["id"]): change["after"] for change in lake.decoded() if change["op"] == "r"}
    wrong = [
        (type_[:40], value and value.sql[:40], image[name] and image[name][:60])
        for number, row in enumerate(rows(cases), 1) for image in [read.pop(number)]
        for name, type_ in columns(cases).items() for value in [row.get(name)]
        if name not in rejected and image[name] != (value.text if value else None)
    ]
    assert (wrong, read) == ([], {})
