"""compose.yaml's MariaDB: its SQL and its options run on a real server, and its event changes rows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from tests.support.mysql import MysqlServer
from tests.support.wheel import HOME


@pytest.mark.parity
def test_stock_is_created_and_changes(tmp_path: Path) -> None:
    service = yaml.safe_load((HOME / "compose.yaml").read_text())["services"]["mariadb"]
    assert {"--log-bin", "--binlog-format=ROW", "--binlog-row-metadata=FULL"} <= set(service["command"])
    script = (HOME / "conf/compose/mariadb.sql").read_text()
    with MysqlServer("mariadb", tmp_path / "data", *service["command"]) as server:
        statements = [each for each in script.split(";\n") if each.strip()]
        server.run("CREATE DATABASE stock")
        with server.connect("stock") as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        counts = "SELECT count(*), sum(counted_at > (SELECT min(counted_at) FROM stock.stock)) FROM stock.stock"
        deadline = time.monotonic() + 60
        while not (row := server.rows(counts)[0])[1]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert row[0] == 300
