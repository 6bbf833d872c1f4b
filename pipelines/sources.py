"""From the configuration to the database it means."""

from __future__ import annotations

from dblake.config import Config
from dblake.core.source import Source
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.source import MysqlSource
from dblake.source.postgres.settings import PostgresSettings
from dblake.source.postgres.source import PostgresSource


def postgres_settings(config: Config) -> PostgresSettings:
    """What the PostgreSQL source needs to know; reads the secret."""
    source = config.source
    return PostgresSettings(
        name=source.name, host=source.host, port=source.port, database=source.database, user=source.user,
        password=source.password.read().get_secret_value(), patterns=source.tables, tls=source.tls,
        watermark_schema=source.watermark_schema, slot=source.slot, publication=source.publication,
    )


def mysql_settings(config: Config) -> MysqlSettings:
    """What the MySQL and MariaDB source needs to know; reads the secret."""
    source = config.source
    return MysqlSettings(
        name=source.name, flavour="mariadb" if source.type == "mariadb" else "mysql", host=source.host,
        port=source.port, user=source.user, password=source.password.read().get_secret_value(),
        patterns=source.tables, tls=source.tls, watermark_schema=source.watermark_schema, server_id=source.server_id,
    )


def open_source(config: Config) -> Source:
    """The configured database; nothing is connected yet."""
    if config.source.type == "postgres":
        return PostgresSource(postgres_settings(config))
    return MysqlSource(mysql_settings(config))
