"""From the configuration to the database it means."""

from __future__ import annotations

from dblake.config import Config
from dblake.core.source import Source
from dblake.mask.masks import Masks
from dblake.mask.source import MaskedSource
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
        tls_ca=source.tls_ca, watermark_schema=source.watermark_schema, plugin=source.plugin, slot=source.slot,
        log_ddl=source.log_ddl,
        publication=source.publication,
    )


def mysql_settings(config: Config) -> MysqlSettings:
    """What the MySQL and MariaDB source needs to know; reads the secret."""
    source = config.source
    return MysqlSettings(
        name=source.name, flavour="mariadb" if source.type == "mariadb" else "mysql", host=source.host,
        port=source.port, user=source.user, password=source.password.read().get_secret_value(),
        patterns=source.tables, tls=source.tls, tls_ca=source.tls_ca, watermark_schema=source.watermark_schema,
        server_id=source.server_id,
    )


#: How each kind of database spells the type of text of any length; a masked column is of it.
_TEXT = {"postgres": "text", "mysql": "longtext character set utf8mb4", "mariadb": "longtext character set utf8mb4"}


def open_source(config: Config) -> Source:
    """The configured database, masked if there are rules; nothing is connected yet."""
    mask = config.mask
    source = _unmasked(config)
    if not mask.tables:
        return source
    key = mask.key.read() if mask.key else b""
    return MaskedSource(source, Masks(mask.tables, key, text=_TEXT[config.source.type]))


def _unmasked(config: Config) -> Source:
    if config.source.type == "postgres":
        return PostgresSource(postgres_settings(config))
    return MysqlSource(mysql_settings(config))
