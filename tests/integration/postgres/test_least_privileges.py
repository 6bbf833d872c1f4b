"""The grants of ``--init`` suffice for capture, and preflight names each one that is revoked.

The grants are parsed from the statements, so that each new one is a new case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dblake.base.core.source import Check, Source
from dblake.ingest.source.mysql.init import run_init as mysql_init
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.source import MysqlSource
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init as postgres_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.source import PostgresSource
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer, emptied
from tests.support.postgres import fresh_database

_GRANT = re.compile(r"GRANT (.+?) ON (.+) TO (.+?);?")


@dataclass(frozen=True)
class Prepared:
    """A source after ``--init`` with its grants as ``(privilege, object, role)``; ``run`` executes as administrator."""

    source: Source
    grants: set[tuple[str, str, str]]
    run: Callable[..., None]

    def unmet(self) -> list[Check]:
        return [check for check in self.source.preflight() if not check.ok]


@contextmanager
def prepare_postgres(server: EmbeddedPostgres) -> Iterator[Prepared]:
    with fresh_database(server) as database:
        database.run("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, v text)",
                     "INSERT INTO shop.orders VALUES (1, 'a')",
                     # PUBLIC has these by default; careful administrators revoke them.
                     f"REVOKE ALL ON DATABASE {database.name} FROM PUBLIC", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
        settings = PostgresSettings(
            "shop", "127.0.0.1", server.port, database.name, f"least_{database.name}", "secret", ("shop.*",),
            tls="disable", slot=f"least_{database.name}", publication="p",
        )
        plan = postgres_init(settings, server.user, server.password)
        yield Prepared(PostgresSource(settings), parse_grants(plan.statements), database.run)
        database.run(f"DROP OWNED BY {settings.user}", f"DROP ROLE {settings.user}")


@contextmanager
def prepare_mysql(server: MysqlServer) -> Iterator[Prepared]:
    with emptied(server):
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, v varchar(9))",
                   "INSERT INTO shop.orders VALUES (1, 'a')")
        settings = MysqlSettings("shop", server.flavour, "127.0.0.1", server.port, "cap", "secret", ("shop.orders",),
                                 tls="disable")
        plan = mysql_init(settings, server.user, server.password)
        yield Prepared(MysqlSource(settings), parse_grants(plan.statements), server.run)


def parse_grants(statements: tuple[str, ...]) -> set[tuple[str, str, str]]:
    grants = [match.groups() for match in map(_GRANT.fullmatch, statements) if match]
    return {(privilege.strip(), on, role) for privileges, on, role in grants for privilege in privileges.split(",")}


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def prepared(request: pytest.FixtureRequest) -> Iterator[Prepared]:
    server = request.getfixturevalue(request.param)
    with prepare_postgres(server) if request.param == "postgres" else prepare_mysql(server) as prepared:
        yield prepared


def test_init_grants_suffice_for_capture(prepared: Prepared, tmp_path: Path) -> None:
    assert prepared.unmet() == []
    lake = CaptureLake(tmp_path)
    lake.capture(prepared.source)
    prepared.run("INSERT INTO shop.orders VALUES (2, 'b')", "ALTER TABLE shop.orders ADD w int",
                 "UPDATE shop.orders SET v = 'c' WHERE id = 2")
    lake.dump("shop.orders")
    lake.capture(prepared.source, readers=2)
    assert {key: row["v"] for key, row in lake.state("shop.orders").items()} == {("1",): "a", ("2",): "c"}
    assert {dump["state"] for dump in lake.dumps()} == {"done"}


def test_revoked_grant_is_named_and_restored_by_its_fix(prepared: Prepared) -> None:
    assert len(prepared.grants) >= 5, prepared.grants
    for privilege, on, role in sorted(prepared.grants):
        prepared.run(f"REVOKE {privilege} ON {on} FROM {role}")
        problems = prepared.unmet()
        assert problems, f"preflight does not report {privilege} ON {on}"
        printed = parse_grants(tuple(line for check in problems for line in check.fix.splitlines()))
        assert any(privilege == p and _words_of(on) <= _words_of(o) for p, o, _ in printed), (privilege, on, problems)
        for check in problems:
            prepared.run(*(line.removesuffix(";") for line in check.fix.splitlines() if line.startswith("GRANT")))
        assert prepared.unmet() == [], f"after the fix for {privilege} ON {on}"


def _words_of(on: str) -> set[str]:
    """Return the words of a grant's object without its kind."""
    return set(re.findall(r"[\w*]+", on)) - {"TABLE", "SCHEMA", "DATABASE"}
