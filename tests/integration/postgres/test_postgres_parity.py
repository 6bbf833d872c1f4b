"""Every PostgreSQL type: a dumped row and an equal row from the log have equal canonical text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.errors import Unsupported
from dblake.base.core.source import ChunkRequest
from tests.support import postgres_values as values
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.parity import TABLE, TWIN, columns, rows
from tests.support.postgres import Database


@pytest.fixture
def backend(database: Database) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(database)
    yield backend
    backend.close()


def landed(backend: PostgresBackend, lake: CaptureLake) -> list[dict[str, Any]]:
    """Return decoded rows: all values dumped, their twins inserted and then updated."""
    values.create(backend.database)
    values.insert(backend.database, 1)
    source = backend.source("public.*")
    lake.dump(TABLE)
    lake.capture(source)
    values.insert(backend.database, TWIN + 1)
    backend.run(f"UPDATE {TABLE} SET touched = 1 WHERE id > {TWIN}")
    lake.capture(source)
    return lake.decoded()


def test_dumped_and_logged_row_have_equal_text(backend: PostgresBackend, tmp_path: Path) -> None:
    by_op: dict[str, dict[int, dict[str, Any]]] = {op: {} for op in "rcu"}
    for change in landed(backend, CaptureLake(tmp_path)):
        by_op[change["op"]][int(change["key"]["id"]) % TWIN] = change
    wrong = []
    for number, row in enumerate(rows(values.CASES), 1):
        read, created, updated = (by_op[op].pop(number) for op in "rcu")
        images = [read["after"], created["after"], updated["before"], updated["after"]]
        for name, type_ in columns(values.CASES).items():
            value = row.get(name)
            texts = [image[name] for image in images]
            expected = [value.text if value else None] * 4
            if texts != expected:
                wrong.append((type_, value and value.text[:60], [text and text[:60] for text in texts]))
        # pgoutput omits generated columns, and so does a dump.
        assert [set(image) for image in images] == [{"id", "touched", "given", *columns(values.CASES)}] * 4
        assert [change["undecoded"] for change in (read, created, updated)] == [None] * 3
    assert wrong == []
    assert by_op == {"r": {}, "c": {}, "u": {}}


def test_domain_has_its_base_types_name(backend: PostgresBackend, tmp_path: Path) -> None:
    backend.run(
        "CREATE DOMAIN whole AS numeric(6,0)", "CREATE DOMAIN positive AS whole CHECK (VALUE > 0)",
        "CREATE TABLE t (id positive PRIMARY KEY, n whole, ns whole[], gone int)",
    )
    lake, source = CaptureLake(tmp_path), backend.source("public.*")
    # The catalog no longer matches the first row, so its types come from the log.
    backend.run(
        "INSERT INTO t VALUES (1, 2, '{3}', 4)", "ALTER TABLE t DROP COLUMN gone", "INSERT INTO t VALUES (5, 6, '{7}')"
    )
    lake.capture(source)
    types = {schema.names: [c.type for c in schema.columns] for schema in lake.schemas(lake.landing()).values()}
    assert types == {
        ("id", "n", "ns", "gone"): ["numeric(6,0)", "numeric(6,0)", "public.whole[]", "integer"],
        ("id", "n", "ns"): ["numeric(6,0)", "numeric(6,0)", "public.whole[]"],
    }


def test_generated_key_column_is_rejected(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    backend = PostgresBackend(database)
    source = backend.source("public.*")
    database.run(
        "CREATE TABLE parts (id int, half int GENERATED ALWAYS AS (id / 2) STORED, PRIMARY KEY (half))",
        "GRANT SELECT ON parts TO PUBLIC",
    )
    with pytest.raises(Unsupported, match=r"table public\.parts: its primary key has a generated column"):
        source.open_reader().read(ChunkRequest("public.parts", 1, "", 10), lambda rows, schema: None)
    backend.run("ALTER PUBLICATION p ADD TABLE parts", "INSERT INTO parts VALUES (2)")
    stream = source.open_log(None, 1)
    rejected: dict[str, str] = {}
    while not rejected:
        piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=5)
        assert piece is not None, "the log has the row"
        rejected |= piece.rejected
        assert not piece.rows
    assert "its primary key has a generated column" in rejected["public.parts"]
    stream.close()
    backend.close()
