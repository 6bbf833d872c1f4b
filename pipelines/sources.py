"""Wire the source: from the configuration to the database's driver, masked if there are rules."""

from __future__ import annotations

from dblake.base.core.source import Source
from dblake.config import Config
from dblake.ingest.mask.masks import Masks
from dblake.ingest.mask.source import MaskedSource
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.postgres.settings import PostgresSettings

_TEXT_TYPES = {"postgres": "text"} | dict.fromkeys(("mysql", "mariadb"), "longtext character set utf8mb4")
"""Each database's spelling of unbounded text, the type of masked columns."""


def postgres_settings(config: Config) -> PostgresSettings:
    """Return the PostgreSQL source's settings. Resolves the password."""
    source = config.source
    return PostgresSettings(
        name=source.name, host=source.host, port=source.port, database=source.database, user=source.user,
        password=source.password.read().get_secret_value(), patterns=source.tables, tls=source.tls,
        tls_ca=source.tls_ca, watermark_schema=source.watermark_schema, slot=source.slot,
        publication=source.publication, log_ddl=source.log_ddl, replica=source.replica_address(),
        primary=source.primary_address(), watermarks=source.watermarks,
    )


def mysql_settings(config: Config) -> MysqlSettings:
    """Return the MySQL or MariaDB source's settings. Resolves the password."""
    source = config.source
    return MysqlSettings(
        name=source.name, flavour="mariadb" if source.type == "mariadb" else "mysql", host=source.host,
        port=source.port, user=source.user, password=source.password.read().get_secret_value(),
        patterns=source.tables, tls=source.tls, tls_ca=source.tls_ca, watermark_schema=source.watermark_schema,
        server_id=source.server_id, replica=source.replica_address(),
    )


def open_source(config: Config) -> Source:
    """Return the configured source, masked if there are rules. Does not connect yet."""
    mask = config.mask
    source = open_unmasked(config)
    if not mask.tables:
        return source
    key = mask.key.read() if mask.key else b""
    return MaskedSource(source, Masks(mask.tables, key, text=_TEXT_TYPES[config.source.type]))


def open_unmasked(config: Config) -> Source:
    """Return the configured source as the database has it. Does not connect yet."""
    # Only one of the drivers has to be installed.
    if config.source.type == "postgres":
        from dblake.ingest.source.postgres.source import PostgresSource

        return PostgresSource(postgres_settings(config))
    from dblake.ingest.source.mysql.source import MysqlSource

    return MysqlSource(mysql_settings(config))
