"""User errors: one line with cause, place and next step, and the right exit code; no traceback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from tests.e2e.test_quickstart import submit
from tests.support.postgres import Database

_CONF = """
warehouse: {warehouse}
progress: file:./progress
source:
  name: shop
  type: postgres
  host: 127.0.0.1
  port: {port}
  database: {database}
  user: {user}
  password: ${{file:./password}}
  tls: {tls}
  tables: ["public.*"]
"""


@dataclass
class Bench:
    """A database prepared for capture, with a configuration that each case breaks."""

    database: Database
    folder: Path
    keys: dict[str, str] = field(default_factory=dict)

    def write(self, **keys: str) -> None:
        """Rewrite the configuration with some keys changed."""
        self.keys |= keys
        (self.folder / "shop.yaml").write_text(_CONF.format(**self.keys))

    def sql(self, statement: str) -> None:
        """Run a statement as superuser."""
        self.database.run(statement)


@pytest.fixture
def bench(tmp_path: Path, database: Database) -> Bench:
    user = f"capture_{database.name}"
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE keyless (x int)")
    settings = PostgresSettings(
        "shop", "127.0.0.1", database.server.port, database.name, user, "right", ("public.*",), tls="disable"
    )
    run_init(settings, database.server.user, database.server.password)
    (tmp_path / "password").write_text("right")
    bench = Bench(database, tmp_path)
    port = str(database.server.port)
    bench.write(warehouse="./warehouse", port=port, database=database.name, user=user, tls="disable")
    return bench


def _leave(bench: Bench) -> None:
    """Change nothing: the command itself is wrong."""


def _password(bench: Bench) -> None:
    (bench.folder / "password").write_text("wrong")


def _warehouse(bench: Bench) -> None:
    (bench.folder / "file").write_text("")
    bench.write(warehouse="./file/warehouse")


def _slot_gone(bench: Bench) -> None:
    bench.sql("SELECT pg_drop_replication_slot('dblake_shop')")


def _slot_lost(bench: Bench) -> None:
    assert submit("capture", "--conf", str(bench.folder / "shop.yaml"), "--until-caught-up").returncode == 0
    _slot_gone(bench)


def _unpublished(bench: Bench) -> None:
    bench.sql("ALTER PUBLICATION dblake_shop DROP TABLE t")


def _yaml(bench: Bench) -> None:
    (bench.folder / "shop.yaml").write_text("warehouse: [")


@pytest.mark.parametrize(
    ("break_setup", "command", "code", "words"),
    [
        (_leave, ["frobnicate"], 64, ["frobnicate", "capture"]),
        (_leave, ["capture", "--until"], 64, ["--until"]),
        (_yaml, ["capture"], 78, ["shop.yaml:", "YAML"]),
        (_password, ["capture"], 78, ["wrong password", "source.password"]),
        (lambda b: b.write(database="nowhere"), ["capture"], 78, ["database", "source.database"]),
        (lambda b: b.write(tls="verify"), ["capture"], 78, ["TLS", "source.tls"]),
        (lambda b: b.write(port="1"), ["preflight"], 78, ["source.port"]),
        (_warehouse, ["capture", "--until-caught-up"], 78, ["warehouse", "not a directory"]),
        (_slot_gone, ["capture"], 78, ["slot dblake_shop does not exist", "preflight --init"]),
        (_slot_lost, ["capture"], 78, ["gap", "--accept-gap"]),
        (_unpublished, ["capture"], 78, ["publication_tables", "public.t", "preflight"]),
        (_leave, ["dump", "start", "--table", "public.tt"], 78, ["public.tt", "public.t"]),
        (_leave, ["dump", "start", "--table", "public.keyless"], 78, ["public.keyless", "primary key"]),
    ],
)
def test_user_error_prints_one_line_and_code(
    bench: Bench, break_setup: Callable[[Bench], object], command: list[str], code: int, words: list[str]
) -> None:
    break_setup(bench)
    job, *rest = command
    conf = [] if job == "frobnicate" else ["--conf", str(bench.folder / "shop.yaml")]
    at = 1 if job == "dump" else 0
    done = submit(job, *rest[:at], *conf, *rest[at:])
    message = done.stdout + done.stderr
    assert done.returncode == code, message
    assert all(word in message for word in words), message
    assert "Traceback" not in message
    assert "right" not in message.split()
