"""Run the database of ``up --demo``: a PostgreSQL server with a small shop, and a writer that changes it.

Guarantee: server and writer end with the block. The configuration is what ``init`` writes for this database, so every
job runs on it. It switches off check and maintenance, which need a JVM. Leaves all replication to ``up``.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dblake.base.core.errors import DblakeError
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.config import Config, load_config
from dblake.config.draft import DatabaseUrl, draft_config, example_of
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.pgbench import Pgbench
from dblake.installation import application_home
from pipelines.fresh_folder import fresh_folder
from pipelines.sources import postgres_settings

_MARKER = "made-by-dblake-demo"
_DATABASE, _ROLE = "shop", "dblake"
_TRANSACTIONS_PER_SECOND = 10
_FRESH: Mapping[str, Mapping[str, object]] = {
    "state": {"interval_seconds": 1.0},
    "run": {"check_seconds": None, "maintain_seconds": None},
}
_POLL_SECONDS = 0.1

logger = logging.getLogger(f"dblake.{__name__}")


@contextmanager
def demo_database(folder: Path) -> Iterator[Path]:
    """Run the database, prepared for capture, and its writer within the block; yield the configuration file.

    ``folder`` is recreated. Call it from the main thread. Raises ConfigError if the folder is not the demo's own.
    """
    conf = application_home() / "conf"
    with fresh_folder(folder, _MARKER), EmbeddedPostgres(folder / "postgres") as server:
        shop = Pgbench(server, _DATABASE, folder / "pgbench.log")
        shop.load(conf / "demo-shop.sql")
        file = _write_configuration(folder, server.port)
        run_init(postgres_settings(load_config(file)), server.user, server.password)
        with shop.repeating(conf / "demo-writes.sql", _TRANSACTIONS_PER_SECOND):
            yield file


def _write_configuration(folder: Path, port: int) -> Path:
    secret, file = folder / "demo.password", folder / "demo.yaml"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_urlsafe(24), encoding="ascii")
    url = DatabaseUrl("postgres", "127.0.0.1", port, _ROLE, _DATABASE)
    file.write_text(draft_config(
        (application_home() / example_of(url.kind)).read_text(encoding="utf-8"), url, name=_DATABASE,
        password="${file:demo.password}", tls="disable", others=_FRESH,  # noqa: S106 - a reference
    ), encoding="utf-8")
    return file


def announce_rows(config: Config, file: Path, began: float) -> None:
    """Log, once, when state has rows of orders, in seconds since ``began`` of the monotonic clock. Returns at once."""
    path = Paths(config.warehouse, config.source.name).state("public", "orders")

    def watch() -> None:
        while not _has_rows(path):
            time.sleep(_POLL_SECONDS)
        logger.info("demo: state has its first rows after %.1f s. In another terminal: dblake sql --conf %s "
                    '"SELECT status, count(*) FROM orders GROUP BY status"', time.monotonic() - began, file)

    threading.Thread(target=watch, name="first rows", daemon=True).start()


def _has_rows(path: str) -> bool:
    try:
        return bool(query_rows(path, "SELECT 1 FROM t LIMIT 1"))
    except DblakeError:
        return False
