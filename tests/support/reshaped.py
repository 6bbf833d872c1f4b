"""Schema changes of a table that PostgreSQL or MySQL (and MariaDB) can make, and databases to make them in.

Every value names the column it belongs to, so that a NULL or shifted value in any event is detectable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from dblake.base.core.source import Source
from dblake.ingest.source.postgres.init import run_init
from tests.support.backends import PostgresBackend, Row
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.postgres import Database

T, U = "public.t", "public.u"
CREATE = "CREATE TABLE public.t (id int PRIMARY KEY, a varchar(20) NOT NULL, n int NOT NULL, b varchar(20) NOT NULL)"
INSERT = "INSERT INTO public.t (id, a, n, b) VALUES ({0}, 'a{0}', 1{0}, 'b{0}')"
UPDATE = "UPDATE public.t SET a = 'a{0}x' WHERE id = {0}"
WITH_C = "INSERT INTO public.t (id, a, n, b, c) VALUES ({0}, 'a{0}', 1{0}, 'b{0}', 'c{0}')"
VALUES = {"id": r"\d{1,2}", "a": r"a\w+", "n": r"n?\d{2,}(\.00)?", "b": r"b\w+", "c": r"[bc]\w+"}


@dataclass(frozen=True)
class Change:
    """A schema change. ``on`` has its statements by kind of database; ``insert`` and ``update`` work after it.

    ``redumped`` are the kinds on which the change adds, changes or removes rows without events, so that capture must
    dump the table again.
    """

    name: str
    on: Mapping[str, tuple[str, ...]]
    insert: str = INSERT
    update: str = UPDATE
    table: str = T
    redumped: tuple[str, ...] = ("postgres", "mysql")


def both(*statements: str) -> dict[str, tuple[str, ...]]:
    return {"postgres": statements, "mysql": statements}


def each(postgres: str, mysql: str) -> dict[str, tuple[str, ...]]:
    return {"postgres": (postgres,), "mysql": (mysql,)}


def t(change: str) -> str:
    return f"ALTER TABLE public.t {change}"


CHANGES = {change.name: change for change in (
    Change("added", both(t("ADD COLUMN c varchar(20) DEFAULT 'c0' NOT NULL")), WITH_C),
    Change("added, a value each", {"postgres": (t("ADD c text NOT NULL DEFAULT 'c' || (random() * 1e6)::int"),)},
           WITH_C),
    Change("dropped", both(t("DROP COLUMN n")), "INSERT INTO public.t (id, a, b) VALUES ({0}, 'a{0}', 'b{0}')",
           redumped=()),
    Change("dropped and added", both(t("DROP COLUMN n, ADD COLUMN n int NOT NULL DEFAULT 77"))),
    Change("renamed", both(t("RENAME COLUMN b TO c")),
           "INSERT INTO public.t (id, a, n, c) VALUES ({0}, 'a{0}', 1{0}, 'c{0}')"),
    Change("reordered", {"mysql": (t("MODIFY b varchar(20) NOT NULL AFTER id"),)}),
    Change("widened", each(t("ALTER n TYPE bigint"), t("MODIFY n bigint NOT NULL"))),
    Change("narrowed", each(t("ALTER n TYPE smallint"), t("MODIFY n smallint NOT NULL"))),
    Change("scaled", each(t("ALTER n TYPE numeric(12,2)"), t("MODIFY n decimal(12,2) NOT NULL"))),
    Change("made text", each(t("ALTER n TYPE varchar(20) USING 'n' || n"), t("MODIFY n varchar(20) NOT NULL"))),
    Change("rewritten", {"postgres": (t("ALTER n TYPE int USING n + 100"),)}),
    Change("key changed", each(t("DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)"),
                               t("DROP PRIMARY KEY, ADD PRIMARY KEY (n)"))),
    Change("table renamed", each(t("RENAME TO u"), "RENAME TABLE public.t TO public.u"),
           INSERT.replace(T, U), UPDATE.replace(T, U), U),
    Change("recreated", both("DROP TABLE public.t", CREATE, *(INSERT.format(n) for n in (2, 3, 4))),
           redumped=("postgres",)),
    Change("swapped", {
        "mysql": (CREATE.replace("public.t", "public._t_gho"), "ALTER TABLE public._t_gho ADD c varchar(20)",
                    "INSERT INTO public._t_gho SELECT id, a, n, b, 'c0' FROM public.t",
                    "RENAME TABLE public.t TO public._t_del, public._t_gho TO public.t", "DROP TABLE public._t_del"),
        "postgres": (CREATE.replace("public.t", "public.t_new"), "ALTER TABLE public.t_new ADD c varchar(20)",
                     "INSERT INTO public.t_new SELECT id, a, n, b, 'c0' FROM public.t",
                     "BEGIN; ALTER TABLE public.t RENAME TO t_old; ALTER TABLE public.t_new RENAME TO t; COMMIT",
                     "DROP TABLE public.t_old"),
    }, WITH_C),
)}


KINDS = {"database": "postgres", "mariadb": "mysql", "mysql": "mysql"}
"""The kind of each fixture's server, in whose statements a change is declared."""


class Reshaped:
    """A database of either kind (``postgres``, ``mysql``) with a table that changes its schema."""

    def __init__(self, kind: str, backend: PostgresBackend | MysqlBackend, run: Callable[..., None]) -> None:
        self.kind, self.backend, self.run = kind, backend, run

    def create(self) -> Source:
        """Create table ``t`` with six rows; return the source that captures it."""
        self.run(CREATE, *(INSERT.format(n) for n in range(1, 7)))
        return self.backend.source("public.*")

    def change(self, change: Change) -> None:
        """Apply the change, with row changes before and after it."""
        self.run(INSERT.format(20), UPDATE.format(2), "DELETE FROM public.t WHERE id = 5", *change.on[self.kind])
        self.grant()
        self.run(change.insert.format(21), change.update.format(3), change.update.format(21))

    def grant(self) -> None:
        """Grant capture access to tables created since, as preflight --init does."""
        if isinstance(self.backend, PostgresBackend):
            server = self.backend.database.server
            assert self.backend.settings is not None
            run_init(self.backend.settings, server.user, server.password)
        else:
            self.backend.source("public.*")

    def sorted_rows(self, table: str) -> list[Row]:
        """Return the table's rows, sorted by ``id``."""
        return sorted(self.backend.rows(table), key=lambda row: int(row["id"] or 0))


@contextmanager
def reshaped(server: Database | MysqlServer) -> Iterator[Reshaped]:
    """Yield a PostgreSQL database, or a MySQL or MariaDB server that is emptied before and after the block."""
    if isinstance(server, Database):
        postgres = PostgresBackend(server)
        yield Reshaped("postgres", postgres, server.run)
        postgres.close()
    else:
        server.empty()
        server.run("CREATE DATABASE public")
        yield Reshaped("mysql", MysqlBackend(server), server.run)
        server.empty()


def find_misplaced(images: Iterable[Mapping[str, str | None]]) -> list[tuple[str, str | None]]:
    """Return the values that are NULL or do not belong to their column."""
    return [
        (name, value) for image in images for name, value in image.items()
        if value is None or not re.fullmatch(VALUES[name], value)
    ]
