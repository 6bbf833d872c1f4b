"""A state table in Delta: how far it is, and how it comes to be and grows with its shape.

How far a table is stands in its own log, as the SetTransaction of ``merge``: the landing batch up to which events
were folded in. Deletion vectors are off, so that readers which do not know them (delta-rs, DuckDB) read the tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from dblake.spark.sql_literals import delta, identifier, literal
from dblake.state.shape import OWN, Shape, fitted, key_changed

# Characters a Parquet column name may not hold; Delta then gives columns other names inside.
_ODD_NAME = re.compile(r"[ ,;{}()\n\t=]")
_MAPPED = "'delta.columnMapping.mode' = 'name'"
_KEY = "dblake.key"


@dataclass(frozen=True, slots=True)
class Progress:
    """A state table's newest version, the landing batch folded in up to it (None before the first), and its key."""

    version: int
    batch: int | None
    key: str | None

    def require_key(self, shape: Shape) -> None:
        """Raises BrokenShape if the table's rows go by another key than the shape's."""
        if self.key is not None and self.key != _key_property(shape):
            raise key_changed(shape.table)


def progress(path: str, app: str) -> Progress | None:
    """How far the table is by its own log; None if there is no table."""
    if not DeltaTable.is_deltatable(path):
        return None
    table = DeltaTable(path)
    return Progress(table.version(), table.transaction_version(app), table.metadata().configuration.get(_KEY))


def prepare(spark: SparkSession, path: str, shape: Shape) -> Shape:
    """Makes the table, or lets it grow, so that it can take rows of the shape; returns the shape it then has.

    Every step leaves a table that is right as it is, so dying between two of them costs nothing. A shape the table
    cannot grow to is a BrokenShape.
    """
    if not DeltaTable.is_deltatable(path):
        _create(spark, path, shape)
    key = spark.sql(f"SHOW TBLPROPERTIES {delta(path)} ('{_KEY}')").first()
    if key is not None and key["value"] != _key_property(shape):
        raise key_changed(shape.table)
    existing = {f.name: f.dataType.simpleString().upper() for f in spark.read.format("delta").load(path).schema}
    shape = fitted(shape, existing)
    missing = [c for c in shape.columns if c.name not in existing]
    if any(_ODD_NAME.search(c.name) for c in missing):
        spark.sql(f"ALTER TABLE {delta(path)} SET TBLPROPERTIES ({_MAPPED})")
    if missing:
        added = ", ".join(f"{identifier(c.name)} {c.type}" for c in missing)
        spark.sql(f"ALTER TABLE {delta(path)} ADD COLUMNS ({added})")
    if any(existing.get(c.name, c.type) != c.type for c in shape.columns):
        _widen(spark, path, shape)
    return shape


def replace(rows: DataFrame, path: str, shape: Shape, *, app: str, batch: int) -> None:
    """Puts ``rows``, which have the shape's columns, in place of the table and all it held."""
    spark = rows.sparkSession
    if not DeltaTable.is_deltatable(path):
        _create(spark, path, shape)
    if any(_ODD_NAME.search(c.name) for c in shape.columns):
        spark.sql(f"ALTER TABLE {delta(path)} SET TBLPROPERTIES ({_MAPPED})")
    (
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        .option("txnAppId", app).option("txnVersion", batch).save(path)
    )
    # After the rows: with the old key said, a run that died in between is followed by one that does this again.
    spark.sql(f"ALTER TABLE {delta(path)} SET TBLPROPERTIES ('{_KEY}' = {literal(_key_property(shape))})")


def _create(spark: SparkSession, path: str, shape: Shape) -> None:
    columns = [*OWN.items(), *((c.name, c.type) for c in shape.columns)]
    properties = ["'delta.enableDeletionVectors' = 'false'", f"'{_KEY}' = {literal(_key_property(shape))}"]
    if any(_ODD_NAME.search(c.name) for c in shape.columns):
        properties.append(_MAPPED)
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {delta(path)} "
        f"({', '.join(f'{identifier(name)} {kind}' for name, kind in columns)}) USING delta "
        f"TBLPROPERTIES ({', '.join(properties)})"
    )


def _key_property(shape: Shape) -> str:
    return ",".join(map(identifier, shape.primary_key))


def _widen(spark: SparkSession, path: str, shape: Shape) -> None:
    """Writes the table anew with the wider types: the source did the same, and few readers know Delta's own way."""
    types = {c.name: c.type for c in shape.columns}
    table = spark.read.format("delta").load(path)
    table.selectExpr(
        *(f"CAST({identifier(n)} AS {types[n]}) AS {identifier(n)}" if n in types else n for n in table.columns)
    ).write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
