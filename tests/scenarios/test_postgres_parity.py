"""Every type of PostgreSQL, both ways: a row that was dumped and its twin from the log are one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import postgres_values as values
from tests.support.backends import PostgresBackend
from tests.support.lake import Lake
from tests.support.parity import TABLE, TWIN, columns, rows
from tests.support.postgres import Database


def landed(database: Database, lake: Lake) -> list[dict[str, Any]]:
    """Row changes and chunk rows: all values dumped, their twins inserted and then updated."""
    values.create(database)
    values.insert(database, 1)
    backend = PostgresBackend(database)
    source = backend.source("public.*")
    lake.dump(TABLE)
    lake.capture(source)
    values.insert(database, TWIN + 1)
    database.run(f"UPDATE {TABLE} SET touched = 1 WHERE id > {TWIN}")
    lake.capture(source)
    backend.close()
    return lake.decoded()


def test_a_dumped_row_and_its_twin_from_the_log_are_one_text(database: Database, tmp_path: Path) -> None:
    by_op: dict[str, dict[int, dict[str, Any]]] = {op: {} for op in "rcu"}
    for change in landed(database, Lake(tmp_path)):
        by_op[change["op"]][int(change["key"]["id"]) % TWIN] = change
    wrong = []
    for number, row in enumerate(rows(values.CASES), 1):
        read, created, updated = (by_op[op].pop(number) for op in "rcu")
        images = [read["after"], created["after"], updated["before"], updated["after"]]
        for name, type_ in columns(values.CASES).items():
            value = row.get(name)
            told = [image[name] for image in images]
            if told != [value.text if value else None] * 4:
                wrong.append((type_, value and value.text[:60], [text and text[:60] for text in told]))
        # The log leaves out what the server computes of other columns, and so does a dump.
        assert [set(image) for image in images] == [{"id", "touched", "given", *columns(values.CASES)}] * 4
        assert [change["undecoded"] for change in (read, created, updated)] == [None] * 3
    assert wrong == []
    assert by_op == {"r": {}, "c": {}, "u": {}}
