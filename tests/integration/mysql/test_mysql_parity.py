"""Every type of MariaDB and MySQL, both ways: a row that was dumped and its twin from the log are one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import mysql_values as values
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.parity import TABLE, TWIN, columns, rows


def landed(server: MysqlServer, lake: CaptureLake) -> list[dict[str, Any]]:
    """Row changes and chunk rows: all values dumped, their twins inserted and then updated."""
    values.create(server)
    values.insert(server, 1)
    source = MysqlBackend(server).source("public.*")
    lake.dump(TABLE)
    with values.other_defaults(server):
        lake.capture(source)
        values.insert(server, TWIN + 1)
        server.run(f"UPDATE {TABLE} SET touched = 1 WHERE id > {TWIN}")
        lake.capture(source)
    return lake.decoded()


@pytest.mark.parity
def test_dumped_row_equals_logged_row_for_every_type(mysql_server: MysqlServer, tmp_path: Path) -> None:
    cases = values.cases(mysql_server.flavour)
    by_op: dict[str, dict[int, dict[str, Any]]] = {op: {} for op in "rcu"}
    for change in landed(mysql_server, CaptureLake(tmp_path)):
        by_op[change["op"]][int(change["key"]["id"]) % TWIN] = change
    wrong = []
    for number, row in enumerate(rows(cases), 1):
        read, created, updated = (by_op[op].pop(number) for op in "rcu")
        images = [read["after"], created["after"], updated["before"], updated["after"]]
        for name, type_ in columns(cases).items():
            value = row.get(name)
            texts = [image[name] for image in images]
            if texts != [value.text if value else None] * 4:
                wrong.append((type_[:40], value and value.sql[:40], [text and text[:60] for text in texts]))
        assert [set(image) for image in images] == [{"id", "touched", *columns(cases)}] * 4
        no_text = [name for name, value in row.items() if value.undecoded]
        assert [change["undecoded"] or [] for change in (read, created)] == [no_text] * 2
    assert wrong == []
    assert by_op == {"r": {}, "c": {}, "u": {}}
