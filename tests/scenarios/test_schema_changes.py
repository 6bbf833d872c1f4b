"""Tables that change their shape while they are captured: live, and around a chunk, on PostgreSQL and MariaDB.

Every value says in which column it belongs, so that one that is NULL or shifted in any event shows by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dblake.core.source import Source
from dblake.source.postgres.init import run_init
from tests.support.backends import PostgresBackend, Row
from tests.support.lake import Lake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.postgres import Database

T, U = "public.t", "public.u"
CREATE = "CREATE TABLE public.t (id int PRIMARY KEY, a varchar(20) NOT NULL, n int NOT NULL, b varchar(20) NOT NULL)"
INSERT = "INSERT INTO public.t (id, a, n, b) VALUES ({0}, 'a{0}', {0}, 'b{0}')"
UPDATE = "UPDATE public.t SET a = 'a{0}x' WHERE id = {0}"
ADDED = "INSERT INTO public.t (id, a, n, b, c) VALUES ({0}, 'a{0}', {0}, 'b{0}', 'c{0}')"
VALUES = {"id": r"\d+", "a": r"a\w+", "n": r"n?\d+(\.00)?", "b": r"b\w+", "c": r"[bc]\w+"}


@dataclass(frozen=True)
class Change:
    """``on`` has the statements for each database that can do it. Rows come by ``insert`` afterwards."""

    name: str
    on: dict[str, list[str]]
    insert: str = INSERT
    update: str = UPDATE
    table: str = T
    dumped_again: tuple[str, ...] = ("postgres", "mariadb")


def both(*statements: str) -> dict[str, list[str]]:
    return {"postgres": list(statements), "mariadb": list(statements), "mysql": list(statements)}


def each(postgres: str, mysql: str) -> dict[str, list[str]]:
    return {"postgres": [postgres], "mariadb": [mysql], "mysql": [mysql]}


def t(change: str) -> str:
    return f"ALTER TABLE public.t {change}"


CHANGES = [
    Change("added", both(t("ADD COLUMN c varchar(20) DEFAULT 'c0' NOT NULL")), ADDED),
    Change("added, a value each", {"postgres": [t("ADD c text NOT NULL DEFAULT 'c' || (random() * 1e6)::int")]}, ADDED),
    Change("dropped", both(t("DROP COLUMN n")), "INSERT INTO public.t (id, a, b) VALUES ({0}, 'a{0}', 'b{0}')",
           dumped_again=()),
    Change("dropped and added", both(t("DROP COLUMN n, ADD COLUMN n int NOT NULL DEFAULT 77"))),
    Change("renamed", both(t("RENAME COLUMN b TO c")),
           "INSERT INTO public.t (id, a, n, c) VALUES ({0}, 'a{0}', {0}, 'c{0}')"),
    Change("reordered", {"mariadb": [t("MODIFY b varchar(20) NOT NULL AFTER id")]}, dumped_again=()),
    Change("widened", each(t("ALTER n TYPE bigint"), t("MODIFY n bigint NOT NULL"))),
    Change("narrowed", each(t("ALTER n TYPE smallint"), t("MODIFY n smallint NOT NULL"))),
    Change("scaled", each(t("ALTER n TYPE numeric(9,2)"), t("MODIFY n decimal(9,2) NOT NULL"))),
    Change("made text", each(t("ALTER n TYPE varchar(20) USING 'n' || n"), t("MODIFY n varchar(20) NOT NULL"))),
    Change("written anew", {"postgres": [t("ALTER n TYPE int USING n + 100")]}),
    Change("table renamed", each(t("RENAME TO u"), "RENAME TABLE public.t TO public.u"),
           INSERT.replace("public.t", U), UPDATE.replace("public.t", U), U),
    Change("made again", both("DROP TABLE public.t", CREATE, *(INSERT.format(n) for n in (2, 3, 4))),
           dumped_again=("postgres",)),
    Change("swapped by renames", {
        "mariadb": [CREATE.replace("public.t", "public._t_gho"), "ALTER TABLE public._t_gho ADD c varchar(20)",
                    "INSERT INTO public._t_gho SELECT id, a, n, b, 'c0' FROM public.t",
                    "RENAME TABLE public.t TO public._t_del, public._t_gho TO public.t", "DROP TABLE public._t_del"],
        "postgres": [CREATE.replace("public.t", "public.t_new"), "ALTER TABLE public.t_new ADD c varchar(20)",
                     "INSERT INTO public.t_new SELECT id, a, n, b, 'c0' FROM public.t",
                     "BEGIN; ALTER TABLE public.t RENAME TO t_old; ALTER TABLE public.t_new RENAME TO t; COMMIT",
                     "DROP TABLE public.t_old"],
    }, ADDED),
]


class World:
    """A database of either kind with table ``t``, and the rows it has, in the words of the source."""

    def __init__(self, kind: str, backend: PostgresBackend | MysqlBackend, run: Callable[..., None]) -> None:
        self.kind, self.backend, self.run = kind, backend, run
        self.run(CREATE, *(INSERT.format(n) for n in range(1, 7)))

    def source(self) -> Source:
        return self.backend.source("public.*")

    def change(self, change: Change) -> None:
        """The change, with rows before and after it."""
        self.run(INSERT.format(20), UPDATE.format(2), *change.on[self.kind])
        self.grant()
        self.run(change.insert.format(21), change.update.format(3), change.update.format(21))

    def grant(self) -> None:
        """Makes tables captured that were not there before, as preflight --init does."""
        if isinstance(self.backend, PostgresBackend):
            server = self.backend.database.server
            assert self.backend.settings is not None
            run_init(self.backend.settings, server.user, server.password)
        else:
            self.backend.source("public.*")

    def there(self, table: str) -> dict[str, Row]:
        return {str(row["id"]): row for row in self.backend.rows(table)}


@pytest.fixture(params=["postgres", "mariadb"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")
        postgres = PostgresBackend(database)
        yield World("postgres", postgres, database.run)
        postgres.close()
    else:
        server: MysqlServer = request.getfixturevalue("mariadb")
        server.empty()
        server.run("CREATE DATABASE public")
        yield World("mariadb", MysqlBackend(server), server.run)
        server.empty()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def of(world: World, change: Change) -> Change:
    if world.kind not in change.on:
        pytest.skip(f"not on {world.kind}")
    return change


def require_same(world: World, lake: Lake, table: str) -> None:
    """Every column of every row is the source's, and no event ever said otherwise of any column."""
    there = world.there(table)
    state = {key[0]: row for key, row in lake.state(table).items()}
    names = list(next(iter(there.values())))
    assert {key: {name: row.get(name, "absent") for name in names} for key, row in state.items()} == there
    for event in lake.reconciled()[0]:
        for name, value in (event.after or {}).items():
            assert value is not None and re.fullmatch(VALUES[name], value), (event.op, event.key, name, value)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_live(world: World, lake: Lake, change: Change) -> None:
    change = of(world, change)
    source = world.source()
    lake.dump(T)
    lake.capture(source)
    world.change(change)
    lake.capture(source)
    require_same(world, lake, change.table)
    # Whatever the log says once more changes nothing.
    world.run(change.insert.format(30))
    lake.capture(source)
    require_same(world, lake, change.table)
    assert [dump["table"] for dump in lake.dumps()[1:]] == [change.table] * (world.kind in change.dumped_again)


@pytest.mark.parametrize("where", ["low", "read", "high"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_around_a_chunk(world: World, lake: Lake, change: Change, where: str) -> None:
    change = of(world, change)
    source = world.source()
    lake.dump(T)
    lake.capture(source, chunk_size=2, steps={(where, T): lambda: world.change(change)})
    lake.capture(source)
    require_same(world, lake, change.table)
