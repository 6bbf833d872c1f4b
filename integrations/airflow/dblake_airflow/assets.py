"""State tables as Airflow assets, for DAGs scheduled by changes of a table."""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias

from dblake.base.core.names import folder, split_qualified


def table_asset(source: str, table: str) -> Asset:
    """Return the asset of one table, ``schema.table``; each DAG run that changed its state updates it."""
    schema, name = split_qualified(table)
    return Asset(f"dblake://{source}/{folder(schema)}/{folder(name)}")


def any_table(source: str | None = None) -> AssetAlias:
    """Return the alias of all tables of a source, future ones included; without a source, of a fleet's sources."""
    return AssetAlias(f"dblake/{source}" if source else "dblake")
