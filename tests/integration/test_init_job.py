"""``init``: from a database's URL to a configuration that preflight accepts, on real servers; ``doctor`` on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.ingest.source.mysql import init as mysql_init
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.postgres import init as postgres_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from tests.e2e.test_quickstart import submit
from tests.support.mysql import MysqlServer
from tests.support.postgres import Database


def capture_role(database: Database) -> str:
    """Prepare the database for a capture role with the password ``right`` and return the role's name."""
    user = f"capture_{database.name}"
    port, name = database.server.port, database.name
    settings = PostgresSettings("shop", "127.0.0.1", port, name, user, "right", ("public.*",), tls="disable")
    postgres_init.run_init(settings, database.server.user, database.server.password)
    return user


def test_init_of_prepared_postgres_ends_with_0(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    user, port = capture_role(database), database.server.port
    url = f"postgresql://{user}:right@127.0.0.1:{port}/{database.name}"
    done = submit("init", url, "--name", "shop", "--tls", "disable", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "written: shop.yaml, and the password to shop.password" in done.stdout
    assert "1 followed and dumped\n    public.orders" in done.stdout
    assert "dblake up --conf shop.yaml" in done.stdout and "--init" not in done.stdout
    assert (tmp_path / "shop.password").stat().st_mode & 0o777 == 0o600
    assert "right" not in (tmp_path / "shop.yaml").read_text()
    again = submit("init", url, "--name", "shop", cwd=tmp_path)
    assert again.returncode == 64
    assert again.stderr.startswith("dblake init: shop.yaml exists. Next: give another file with --conf")
    assert submit("doctor", "--conf", "shop.yaml", cwd=tmp_path).returncode == 0
    report = (tmp_path / "dblake-doctor.md").read_text()
    assert "## Unmet checks of preflight\n\nNone.\n" in report and '"source": "shop"' in report
    assert '"password": "${file:shop.password}"' in report and "right" not in report


def test_init_of_unprepared_mariadb_names_preflight(
    mariadb: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "right")
    mariadb.run("CREATE DATABASE IF NOT EXISTS first_shop",
                "CREATE TABLE IF NOT EXISTS first_shop.t (id int PRIMARY KEY)",
                "CREATE USER IF NOT EXISTS 'plain'@'%' IDENTIFIED BY 'right'")
    url = f"mariadb://plain@127.0.0.1:{mariadb.port}/first_shop"
    done = submit("init", url, "--password-env", "SHOP_PASSWORD", "--tls", "disable", cwd=tmp_path)
    assert done.returncode == 78, done.stderr
    assert "dblake preflight --conf first_shop.yaml --init --admin-user USER" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["first_shop.yaml"]
    settings = MysqlSettings("first_shop", "mariadb", "127.0.0.1", mariadb.port, "plain", "right", ("first_shop.*",),
                             tls="disable")
    mysql_init.run_init(settings, "root", "")
    (tmp_path / "first_shop.yaml").unlink()
    assert submit("init", url, "--password-env", "SHOP_PASSWORD", "--tls", "disable", cwd=tmp_path).returncode == 0
