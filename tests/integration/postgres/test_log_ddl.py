"""DDL statements in the log (``source.log_ddl``): event triggers from ``preflight --init`` to landing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.base.core.source import Source
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.source import PostgresSource
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

T = "public.t"


class DdlBackend(PostgresBackend):
    """A database whose DDL statements are logged."""

    def source_with_ddl(self) -> Source:
        """Prepare the database with ``log_ddl`` and return its source."""
        self.source("public.*", "!public.not_*")
        assert self.settings is not None
        self.settings = replace(self.settings, log_ddl=True)
        run_init(self.settings, self.database.server.user, self.database.server.password)
        return PostgresSource(self.settings)


@pytest.fixture
def backend(database: Database) -> Iterator[DdlBackend]:
    database.run("CREATE TABLE public.t (id int PRIMARY KEY, a text)", "CREATE TABLE public.u (id int PRIMARY KEY)")
    backend = DdlBackend(database)
    yield backend
    backend.close()


def landed(lake: CaptureLake) -> list[tuple[str, str, str]]:
    """Return kind, table and statement or columns of what landed, in log order."""
    result = []
    rows = lake.landing().to_pylist()
    for row in sorted(rows, key=lambda row: (row["lsn"], row["seq"], row["kind"] == "row", row["kind"] == "schema")):
        if row["kind"] == "ddl":
            statement = json.loads(row["payload"])
            result.append(("ddl", row["table"], statement["statement"] + (", gone" if statement["gone"] else "")))
        elif row["kind"] == "schema":
            result.append(("schema", row["table"], " ".join(c["name"] for c in json.loads(row["payload"])["columns"])))
        elif row["kind"] == "row":
            result.append(("row", row["table"], ""))
    return result


def test_statements_land_in_log_order(backend: DdlBackend, lake: CaptureLake) -> None:
    source = backend.source_with_ddl()
    backend.run(
        "INSERT INTO t VALUES (1, 'x')",
        "BEGIN; INSERT INTO t VALUES (2, 'x'); ALTER TABLE t ADD c text DEFAULT 'secret'; INSERT INTO t VALUES (3);"
        "COMMIT",
        "CREATE TABLE not_captured (id int)", "CREATE TEMP TABLE passing (id int)", "CREATE INDEX ON t (a)",
        "BEGIN; DROP TABLE u; ROLLBACK", "DROP TABLE u, not_captured", "INSERT INTO t VALUES (4)",
    )
    lake.capture(source, redump=False)
    assert landed(lake) == [
        ("schema", T, "id a"), ("row", T, ""), ("row", T, ""), ("ddl", T, "ALTER TABLE"), ("schema", T, "id a c"),
        ("row", T, ""), ("ddl", "public.u", "DROP TABLE, gone"), ("row", T, ""),
    ]
    payloads = [row["payload"] for row in lake.landing().to_pylist() if row["kind"] == "ddl"]
    assert len(payloads) == 2 and b"secret" not in b"".join(payloads)


def test_preflight_disabled_trigger_is_unmet(backend: DdlBackend) -> None:
    source = backend.source_with_ddl()
    assert [check.check for check in source.preflight() if not check.ok] == []
    backend.run("ALTER EVENT TRIGGER dblake_ddl DISABLE")
    (unmet,) = [check for check in source.preflight() if not check.ok]
    assert unmet.check == "ddl_triggers"
    backend.run(unmet.fix)
    assert [check.check for check in source.preflight() if not check.ok] == []


def test_foreign_message_is_logged_and_skipped(
    backend: DdlBackend, lake: CaptureLake, caplog: pytest.LogCaptureFixture
) -> None:
    source = backend.source_with_ddl()
    caplog.set_level(logging.WARNING)
    backend.run(
        "SELECT pg_logical_emit_message(true, 'other', '{')", "SELECT pg_logical_emit_message(true, 'dblake', '{')",
        "SELECT pg_logical_emit_message(false, 'dblake', '{}')", "INSERT INTO t VALUES (1, 'x')",
    )
    lake.capture(source)
    assert landed(lake) == [("schema", T, "id a"), ("row", T, "")]
    assert [r.message for r in caplog.records if "prefix" in r.message] == [
        "skipped a log message with prefix dblake that is not from dblake's event triggers"
    ]


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)
