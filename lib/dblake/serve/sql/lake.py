"""Read a lake from Python: tables and queries as Arrow, pandas, polars, DuckDB or Spark.

Place: behind ``dblake.open``. Guarantee: all tables and queries of one ``Lake`` are read as of one position: state's, a
point's, or the newest transaction that has landed. No JVM is started unless a Spark session is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dblake.base.core.errors import UsageError
from dblake.base.core.extras import named_extras
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import read_schemas
from dblake.serve.read.reading import LakeReading, TableReading, open_reading
from dblake.serve.sql.engine import DuckdbEngine
from dblake.serve.sql.names import TableNames
from dblake.serve.sql.rows import table_rows_sql

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from dblake.serve.consume.partition import Partition
    from dblake.serve.consume.subscription import Subscription


class Lake:
    """The tables of one source. ``dblake.open`` returns one that is read as of state's newest position."""

    def __init__(self, paths: Paths, point: str | None = None, *, is_live: bool = False) -> None:
        self._paths, self._point, self._is_live = paths, point, is_live

    def at(self, point: str) -> Lake:
        """Return the lake as of a point: a position ``1/4711``, an ISO 8601 time (UTC without a zone), or ``now``.

        Raises UsageError for another text, PointOutOfRange for a point that events and state do not cover.
        """
        lake = Lake(self._paths, point)
        _ = lake._reading
        return lake

    def live(self) -> Lake:
        """Return the lake as of the newest transaction that has landed completely."""
        return Lake(self._paths, is_live=True)

    @property
    def position(self) -> Position | None:
        """The position that all tables are read at; None if nothing has been folded yet."""
        return self._reading.position

    @property
    def tables(self) -> Sequence[str]:
        """The qualified names of all tables."""
        return self._reading.tables

    def table(self, name: str) -> LakeTable:
        """Return a table by its name, as ``sql`` takes it or qualified. Raises UsageError for an unknown name."""
        return LakeTable(self._paths, self._reading, self._resolve(name))

    def sql(self, statement: str) -> LakeQuery:
        """Return the result of a query in DuckDB's dialect over the tables of ``sql``.

        Raises UsageError for a statement that is not a query, or that cannot be parsed or resolved.
        """
        return LakeQuery(self._engine, statement)

    def subscribe(
        self, tables: Sequence[str] = ("*.*",), *, start: str = "bootstrap", checkpoint: str | None = None,
        until_caught_up: bool = False, **options: Any,
    ) -> Subscription:
        """Return a subscription to the changes of selected tables, for a ``with`` block.

        It begins where ``start`` or its checkpoint is, whatever the lake is read as of. ``options`` are the others of
        ``dblake.consume.open_subscription``, which describes all of them.
        """
        from dblake.serve.consume.api import open_subscription

        return open_subscription(
            [self._paths], tables=tables, start=start, checkpoint=checkpoint, until_caught_up=until_caught_up, **options
        )

    @cached_property
    def _reading(self) -> LakeReading:
        return open_reading(self._paths, self._point, is_live=self._is_live)

    @cached_property
    def _engine(self) -> DuckdbEngine:
        return DuckdbEngine(self._paths, self._point, is_live=self._is_live, reading=self._reading)

    def _resolve(self, name: str) -> str:
        if name in self._reading.tables:
            return name
        names = TableNames(self._reading.tables)
        view = names.find_written(name)
        if view is None or view.kind:
            raise UsageError(f"there is no table {name}", next_step=names.suggest(name.rpartition(".")[2]))
        return view.table


class LakeTable:
    """The rows of one table; nothing is read before one of its methods is called, and each reads the same rows."""

    def __init__(self, paths: Paths, reading: LakeReading, name: str) -> None:
        self._paths, self._lake, self.name = paths, reading, name

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table, in no particular order."""
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        return self.to_duckdb(connection).to_arrow_table().cast(self._table.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas data frame; integers with NULLs are pandas' nullable ones, which are exact."""
        return _to_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars data frame."""
        return _to_polars(self.to_arrow())

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """Return the rows as a relation of a DuckDB connection: only what a query of it needs is read."""
        return connection.sql(table_rows_sql(connection, self._table, f"_dblake_{id(self)}"))

    def to_spark(self, session: SparkSession) -> DataFrame:
        """Return the rows as a data frame of a Spark session, which has Delta's packages."""
        with named_extras():
            from dblake.serve.sql.spark_reading import reading_frame

        return reading_frame(session, self._table)

    def to_stream(
        self, session: SparkSession, *, start: str = "bootstrap", columns: Sequence[str] | None = None,
        partition: Partition | None = None, max_events: int = 50_000,
    ) -> DataFrame:
        """Return the table's events as a streaming data frame: a subscription to it, in Spark.

        It has the columns of the newest schema, or ``columns`` of them and the key, and the columns in
        ``event_columns.EVENT_COLUMNS``. ``start`` and ``partition`` are a subscription's. A micro-batch has
        whole transactions, about ``max_events`` events. docs/consumers.md describes what it guarantees. Raises
        UsageError for an unknown column.
        """
        from dblake.serve.sql.event_batches import StreamRequest
        from dblake.serve.sql.event_stream import event_stream

        request = StreamRequest(self._paths, self._stream_schema(columns), start, partition, max_events)
        return event_stream(session, request)

    def auto_cdc(self) -> dict[str, Any]:
        """Return the arguments of Spark's ``create_auto_cdc_flow`` for ``to_stream``, but ``target`` and ``source``.

        Raises UsageError for a table without a primary key.
        """
        from dblake.serve.sql.event_stream import auto_cdc

        schema = self._stream_schema(None)
        if not schema.primary_key:
            raise UsageError(
                f"table {self.name} has no primary key, which AUTO CDC needs", next_step="append its stream instead"
            )
        return auto_cdc(schema)

    def _stream_schema(self, columns: Sequence[str] | None) -> TableSchema:
        """Return the newest schema, reduced to columns; rows of older schemas may lack any of them."""
        schema = read_schemas(self._paths)[self.name][-1].schema
        unknown = sorted(set(columns or ()) - set(schema.names))
        if unknown:
            raise UsageError(f"table {self.name} has no column {unknown[0]}",
                             next_step=f"choose from {', '.join(schema.names)}")
        return TableSchema(schema.table, tuple(
            replace(column, nullable=True) for column in schema.columns
            if columns is None or column.name in columns or column.key
        ))

    @cached_property
    def _table(self) -> TableReading:
        return self._lake.table(self.name)


class LakeQuery:
    """The result of a query; each method runs it."""

    def __init__(self, engine: DuckdbEngine, statement: str) -> None:
        self._engine, self._statement = engine, statement
        self._engine.prepare(statement)

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return self._engine.prepare(self._statement).to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas data frame; integers with NULLs are pandas' nullable ones, which are exact."""
        return _to_pandas(self.to_arrow())

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars data frame."""
        return _to_polars(self.to_arrow())

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """Return all rows as a relation of a DuckDB connection; they are held in memory."""
        return connection.from_arrow(self.to_arrow())

    def to_spark(self, session: SparkSession) -> DataFrame:
        """Return all rows as a data frame of a Spark session; they are held in memory."""
        return session.createDataFrame(self.to_arrow())


def _to_pandas(rows: pa.Table) -> pd.DataFrame:
    with named_extras():
        import pandas as pd
    import pyarrow as pa

    nullable = {getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")() for name in ("Int16", "Int32", "Int64")}
    frame = rows.to_pandas()
    for index, column in enumerate(rows.columns):
        # As a float, which is what pandas makes of it, an integer beyond 2**53 would be another one.
        if column.null_count and column.type in nullable:
            frame.isetitem(index, column.to_pandas(types_mapper=nullable.get))
    return frame


def _to_polars(rows: pa.Table) -> pl.DataFrame:
    with named_extras():
        import polars as pl

    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame), "a table becomes a data frame"
    return frame
