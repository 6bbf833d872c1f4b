"""A database server of a trial: an application with a database of its own, and an empty database for an output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg2
import pymysql

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.mysql import MysqlServer

Kind = Literal["postgres", "mariadb"]
SHOP, COPY = "shop", "copy"


@dataclass(frozen=True)
class Application:
    """An application's access to its databases ``shop`` and ``copy``, and the administrator's to the server."""

    kind: Kind
    port: int
    password: str
    admin: str
    admin_password: str

    @property
    def schema(self) -> str:
        """Return the schema of the application's tables, as state names it."""
        return "public" if self.kind == "postgres" else SHOP

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the configuration and ``preflight --init`` refer to."""
        return {"SHOP_PASSWORD": f"{self.password}-dblake", "APP_PASSWORD": self.password,
                "ADMIN_PASSWORD": self.admin_password}

    def connect(self, database: str = SHOP) -> Any:
        """Open the application's connection, without autocommit."""
        if self.kind == "postgres":
            return psycopg2.connect(host="127.0.0.1", port=self.port, dbname=database, user="app",
                                    password=self.password, sslmode="disable")
        return pymysql.connect(host="127.0.0.1", port=self.port, database=database, user="app", password=self.password,
                               charset="utf8mb4")

    def write_conf(self, file: Path, **sections: object) -> None:
        """Write the configuration of a source that captures all tables of the application."""
        source = {"name": SHOP, "type": self.kind, "host": "127.0.0.1", "port": self.port, "user": "dblake",
                  "password": "${env:SHOP_PASSWORD}", "tls": "disable", "tables": [f"{self.schema}.*"]}
        if self.kind == "postgres":
            source["database"] = SHOP
        conf = {"warehouse": "./warehouse", "progress": "file:./progress", "source": source, **sections}
        file.write_text(json.dumps(conf, indent=1), encoding="utf-8")

    def output(self) -> dict[str, object]:
        """Return the configuration of an output that fills the database ``copy``."""
        scheme = "postgresql" if self.kind == "postgres" else "mariadb"
        url = f"{scheme}://app@127.0.0.1:{self.port}/{COPY}"
        return {"type": "sql", "url": url, "password": "${env:APP_PASSWORD}", "tls": "disable"}


@contextmanager
def application(kind: Kind, folder: Path) -> Iterator[Application]:
    """Run a server in a folder, with the application's role, which owns its databases and is no administrator."""
    password = secrets.token_urlsafe(24)
    if kind == "postgres":
        with EmbeddedPostgres(folder / "postgres") as postgres:
            with closing(postgres.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("CREATE ROLE app LOGIN PASSWORD %s", (password,))
                for database in (SHOP, COPY):
                    cursor.execute(f"CREATE DATABASE {database} OWNER app")
            yield Application(kind, postgres.port, password, postgres.user, postgres.password)
        return
    with MysqlServer(kind, folder / kind) as server:
        admin_password = secrets.token_urlsafe(24)
        server.run(f"CREATE USER app IDENTIFIED BY '{password}'", f"SET PASSWORD = PASSWORD('{admin_password}')")
        server.password = admin_password
        for database in (SHOP, COPY):
            server.run(f"CREATE DATABASE {database}", f"GRANT ALL ON {database}.* TO app")
        yield Application(kind, server.port, password, server.user, server.password)
