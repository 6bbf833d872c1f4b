"""Write the golden lake of this version: ``python -m tests.golden.make``, once per release.

The lake is in ``tests/golden/VERSION``: landing, events, state, progress and a subscription's checkpoint of a
PostgreSQL and a MariaDB source. Its last landing batches are in neither events nor state, so that a later version also
continues what this one began. ``expected.json`` has the rows at the source, then and at the end.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dblake import __version__
from dblake.base.core.source import Source
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.serve.consume import open_subscription
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.backends import PostgresBackend, Row
from tests.support.consumers import LOCAL_SESSION
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.postgres import fresh_database

GOLDEN = Path(__file__).parent
ITEMS, NOTES = "public.items", "public.notes"
FIRST = (
    "CREATE TABLE public.items (id int PRIMARY KEY, name varchar(20) NOT NULL, price numeric(10, 2), note text)",
    "CREATE TABLE public.notes (id int PRIMARY KEY, body varchar(20))",
    "INSERT INTO public.items VALUES (1, 'pen', 1.50, 'blue'), (2, 'ink', 12.00, NULL), (3, 'pad', NULL, 'A4')",
    "INSERT INTO public.notes VALUES (1, 'one'), (2, 'two')",
)
SECOND = (
    "UPDATE public.items SET price = 2.25 WHERE id = 1", "DELETE FROM public.items WHERE id = 3",
    "UPDATE public.items SET id = 20 WHERE id = 2", "INSERT INTO public.items VALUES (4, 'cap', 0.10, 'red')",
    "TRUNCATE TABLE public.notes", "INSERT INTO public.notes VALUES (3, 'three')",
)
THIRD = (
    "ALTER TABLE public.items ADD COLUMN stock int", "INSERT INTO public.items VALUES (5, 'map', 7.00, NULL, 9)",
    "UPDATE public.items SET stock = 1 WHERE id = 4", "DELETE FROM public.items WHERE id = 1",
)


def main() -> None:
    """Write the folder of this version; reject one that exists."""
    target = GOLDEN / __version__
    if target.exists():
        raise SystemExit(f"{target} exists: a released lake never changes. Next: raise dblake.__version__ first")
    with tempfile.TemporaryDirectory(prefix="dblake-golden-") as folder:
        lake = Path(folder) / "lake"
        expected = {"shop": _write_source(lake, "shop", _postgres), "bills": _write_source(lake, "bills", _mariadb)}
        (lake / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        shutil.copytree(lake, target)


def _write_source(folder: Path, name: str, opened: Callable[[], Any]) -> dict[str, dict[str, list[Row]]]:
    """Capture one source into the folder's lake; return its rows when state was folded, and at the end."""
    lake = CaptureLake(folder, name)
    with opened() as (run, source, rows):
        run(*FIRST)
        captured: Source = source()
        lake.dump(ITEMS)
        lake.dump(NOTES)
        lake.capture(captured)
        run(*SECOND)
        lake.capture(captured)
        reconcile_once(LOCAL_SESSION, lake.paths)
        for result in run_state(LOCAL_SESSION, lake.paths):
            assert result.error is None, result
        _write_checkpoint(lake, folder / f"{name}.checkpoint")
        folded = {table: rows(table) for table in (ITEMS, NOTES)}
        run(*THIRD)
        lake.capture(captured)
        return {"folded": folded, "landed": {table: rows(table) for table in (ITEMS, NOTES)}}


def _write_checkpoint(lake: CaptureLake, file: Path) -> None:
    """Consume the bootstrap, and keep where the consumer is."""
    with open_subscription([lake.paths], until_caught_up=True) as subscription:
        for _ in subscription:
            pass
        file.write_text(subscription.checkpoint(), encoding="utf-8")


@contextmanager
def _postgres() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "data") as server, \
            fresh_database(server) as database:
        backend = PostgresBackend(database)
        yield database.run, lambda: backend.source("public.*"), backend.rows
        backend.close()


@contextmanager
def _mariadb() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder, MysqlServer("mariadb", Path(folder) / "data") as server:
        server.run("CREATE DATABASE public")
        backend = MysqlBackend(server)
        yield server.run, lambda: backend.source("public.*"), backend.rows


if __name__ == "__main__":
    main()
