"""From the configuration to the database it means."""

from __future__ import annotations

from dblake.config import Config
from dblake.core.errors import ConfigError
from dblake.core.source import Source
from dblake.source.postgres.settings import PostgresSettings
from dblake.source.postgres.source import PostgresSource


def postgres_settings(config: Config) -> PostgresSettings:
    """What the PostgreSQL source needs to know; reads the secret."""
    source = config.source
    if source.type != "postgres":
        raise ConfigError(
            f"source.type: {source.type} is not supported by this version", next_step="use a source of type postgres"
        )
    return PostgresSettings(
        name=source.name, host=source.host, port=source.port, database=source.database, user=source.user,
        password=source.password.read().get_secret_value(), patterns=source.tables, tls=source.tls,
        watermark_schema=source.watermark_schema, slot=source.slot, publication=source.publication,
    )


def open_source(config: Config) -> Source:
    """The configured database; nothing is connected yet."""
    return PostgresSource(postgres_settings(config))
