"""Tables of state as Airflow assets, for DAGs that are to run when a table has changed."""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias

from dblake.core.names import folder, split_qualified


def table_asset(source: str, table: str) -> Asset:
    """The asset of one table, ``schema.table``; updated by each run of the source's DAG that changed its state."""
    schema, name = split_qualified(table)
    return Asset(f"dblake://{source}/{folder(schema)}/{folder(name)}")


def any_table(source: str) -> AssetAlias:
    """Stands for all tables of a source, also those that are not there yet."""
    return AssetAlias(f"dblake/{source}")
