"""The grants that ``--init`` prints: enough for all that capture does, and each is missed by name when it is gone.

Which grants there are is read out of what was printed, so that one more is one case more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dblake.core.source import Check, Source
from dblake.source.mysql.init import run_init as mysql_init
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.source import MysqlSource
from dblake.source.postgres.embedded import EmbeddedPostgres
from dblake.source.postgres.init import run_init as postgres_init
from dblake.source.postgres.settings import PostgresSettings
from dblake.source.postgres.source import PostgresSource
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer, emptied
from tests.support.postgres import fresh_database

_GRANT = re.compile(r"GRANT (.+?) ON (.+) TO (.+?);?")


@dataclass(frozen=True)
class Prepared:
    """A source that ``--init`` has prepared, and its grants: privilege, what on, to whom. ``run`` is the
    administrator's."""

    source: Source
    grants: set[tuple[str, str, str]]
    run: Callable[..., None]

    def failing(self) -> list[Check]:
        return [check for check in self.source.preflight() if not check.ok]


@contextmanager
def on_postgres(server: EmbeddedPostgres) -> Iterator[Prepared]:
    with fresh_database(server) as database:
        database.run("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, v text)",
                     "INSERT INTO shop.orders VALUES (1, 'a')",
                     # Everybody has these unless they are taken away, as careful administrators do.
                     f"REVOKE ALL ON DATABASE {database.name} FROM PUBLIC", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
        settings = PostgresSettings(
            "shop", "127.0.0.1", server.port, database.name, f"least_{database.name}", "secret", ("shop.*",),
            tls="disable", slot=f"least_{database.name}", publication="p",
        )
        plan = postgres_init(settings, server.user, server.password)
        yield Prepared(PostgresSource(settings), granted(plan.statements), database.run)
        database.run(f"DROP OWNED BY {settings.user}", f"DROP ROLE {settings.user}")


@contextmanager
def on_mysql(server: MysqlServer) -> Iterator[Prepared]:
    with emptied(server):
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id int PRIMARY KEY, v varchar(9))",
                   "INSERT INTO shop.orders VALUES (1, 'a')")
        settings = MysqlSettings("shop", server.flavour, "127.0.0.1", server.port, "cap", "secret", ("shop.orders",),
                                 tls="disable")
        plan = mysql_init(settings, server.user, server.password)
        yield Prepared(MysqlSource(settings), granted(plan.statements), server.run)


def granted(statements: tuple[str, ...]) -> set[tuple[str, str, str]]:
    found = [match.groups() for match in map(_GRANT.fullmatch, statements) if match]
    return {(privilege.strip(), on, who) for privileges, on, who in found for privilege in privileges.split(",")}


@pytest.fixture(params=["postgres", "mariadb", "mysql"])
def prepared(request: pytest.FixtureRequest) -> Iterator[Prepared]:
    server = request.getfixturevalue(request.param)
    with on_postgres(server) if request.param == "postgres" else on_mysql(server) as prepared:
        yield prepared


def test_what_is_printed_is_enough(prepared: Prepared, tmp_path: Path) -> None:
    assert prepared.failing() == []
    lake = CaptureLake(tmp_path)
    lake.capture(prepared.source)
    prepared.run("INSERT INTO shop.orders VALUES (2, 'b')", "ALTER TABLE shop.orders ADD w int",
                 "UPDATE shop.orders SET v = 'c' WHERE id = 2")
    lake.dump("shop.orders")
    lake.capture(prepared.source, readers=2)
    assert {key: row["v"] for key, row in lake.state("shop.orders").items()} == {("1",): "a", ("2",): "c"}
    assert {dump["state"] for dump in lake.dumps()} == {"done"}


def test_one_fewer_is_named_and_mended_by_the_statement_told(prepared: Prepared) -> None:
    assert len(prepared.grants) >= 5, prepared.grants
    for privilege, on, who in sorted(prepared.grants):
        prepared.run(f"REVOKE {privilege} ON {on} FROM {who}")
        problems = prepared.failing()
        assert problems, f"nothing was said of {privilege} ON {on}"
        told = granted(tuple(line for check in problems for line in check.fix.splitlines()))
        assert any(privilege == p and _names(on) <= _names(o) for p, o, _ in told), (privilege, on, problems)
        for check in problems:
            prepared.run(*(line.removesuffix(";") for line in check.fix.splitlines() if line.startswith("GRANT")))
        assert prepared.failing() == [], f"after what was told of {privilege} ON {on}"


def _names(on: str) -> set[str]:
    """The words of what a grant is on, without what kind of thing that is."""
    return set(re.findall(r"[\w*]+", on)) - {"TABLE", "SCHEMA", "DATABASE"}
