"""PostgreSQL's statements in the log's order: event triggers of ours, from ``preflight --init`` to landing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dblake.core.source import Source
from dblake.source.postgres.init import run_init
from dblake.source.postgres.source import PostgresSource
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

T = "public.t"


class Told(PostgresBackend):
    """A database whose statements are told."""

    def told(self) -> Source:
        """The source, once it is made ready."""
        self.source("public.*", "!public.not_*")
        assert self.settings is not None
        self.settings = replace(self.settings, log_ddl=True)
        run_init(self.settings, self.database.server.user, self.database.server.password)
        return PostgresSource(self.settings)


@pytest.fixture
def backend(database: Database) -> Iterator[Told]:
    database.run("CREATE TABLE public.t (id int PRIMARY KEY, a text)", "CREATE TABLE public.u (id int PRIMARY KEY)")
    backend = Told(database)
    yield backend
    backend.close()


def landed(lake: CaptureLake) -> list[tuple[str, str, str]]:
    """What landed of tables, in order: the kind, the table, and what a statement was or a row's columns."""
    found = []
    rows = lake.landing().to_pylist()
    for row in sorted(rows, key=lambda row: (row["lsn"], row["seq"], row["kind"] == "row", row["kind"] == "schema")):
        if row["kind"] == "ddl":
            said = json.loads(row["payload"])
            found.append(("ddl", row["table"], said["statement"] + (", gone" if said["gone"] else "")))
        elif row["kind"] == "schema":
            found.append(("schema", row["table"], " ".join(c["name"] for c in json.loads(row["payload"])["columns"])))
        elif row["kind"] == "row":
            found.append(("row", row["table"], ""))
    return found


def test_statements_stand_where_they_were_among_rows(backend: Told, lake: CaptureLake) -> None:
    source = backend.told()
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


def test_preflight_asks_for_the_triggers(backend: Told) -> None:
    source = backend.told()
    assert [check.check for check in source.preflight() if not check.ok] == []
    backend.run("ALTER EVENT TRIGGER dblake_ddl DISABLE")
    (unmet,) = [check for check in source.preflight() if not check.ok]
    assert unmet.check == "ddl_triggers"
    backend.run(unmet.fix)
    assert [check.check for check in source.preflight() if not check.ok] == []


def test_a_message_of_somebody_elses_is_named_and_passed_over(
    backend: Told, lake: CaptureLake, caplog: pytest.LogCaptureFixture
) -> None:
    source = backend.told()
    caplog.set_level(logging.WARNING)
    backend.run(
        "SELECT pg_logical_emit_message(true, 'other', '{')", "SELECT pg_logical_emit_message(true, 'dblake', '{')",
        "SELECT pg_logical_emit_message(false, 'dblake', '{}')", "INSERT INTO t VALUES (1, 'x')",
    )
    lake.capture(source)
    assert landed(lake) == [("schema", T, "id a"), ("row", T, "")]
    assert [r.message for r in caplog.records if "prefix" in r.message] == [
        "a message in the log has the prefix dblake, and is not of dblake's event triggers"
    ]


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)
