"""Queries with Spark, in its dialect: the twin of ``engine``, with the same names.

Place: behind ``jobs.sql``. It starts a JVM, and is for Spark's dialect and for clusters.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblake.base.core.errors import UsageError
from dblake.base.lake.layout import Paths
from dblake.serve.read.points import describe
from dblake.serve.sql.listing import describe_columns, list_tables, table_words
from dblake.serve.sql.query import forbid_functions, query_views, silence_spark, to_usage_error
from dblake.serve.sql.result import QueryResult, TextResult
from dblake.serve.sql.spark_result import SparkResult
from dblake.serve.sql.statements import described_name, is_show_tables
from dblake.serve.sql.views import Views
from dblake.transform.spark.session import spark_session

_EXPLAIN = re.compile(r"\s*explain\s+(?:(?P<mode>extended|cost|formatted)\s+)?(?P<query>.*)", re.IGNORECASE | re.DOTALL)


class SparkEngine:
    """A Spark session over one source; with ``at`` as of that point."""

    def __init__(self, paths: Paths, at: str | None = None, spark: SparkSession | None = None) -> None:
        self._paths, self._at = paths, at
        self._spark = spark or spark_session("dblake sql", paths.warehouse)
        silence_spark(self._spark)
        forbid_functions(self._spark)
        self._views = Views(self._spark, paths, at)

    def query(self, statement: str) -> QueryResult:
        """Return the statement's result, not yet computed.

        Raises UsageError for a statement that is not a query, or that cannot be parsed or resolved, and StateError if a
        table cannot be read.
        """
        self._views = Views(self._spark, self._paths, self._at)
        statement = statement.strip().rstrip("; \n\t")
        if is_show_tables(statement):
            return list_tables(self._views.schemas)
        described = described_name(statement)
        if described:
            return self._describe(described)
        explained = _EXPLAIN.match(statement)
        if explained:
            return self._explain(explained["query"], explained["mode"] or "simple")
        return SparkResult(query_views(self._spark, self._views, statement))

    def interrupt(self) -> None:
        """Stop the running query, from another thread."""
        self._spark.sparkContext.cancelAllJobs()

    def progress(self) -> float | None:
        """Return the share of the running stages' tasks that are done; None if nothing runs."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
        tasks = sum(info.numTasks for info in stages)
        return sum(info.numCompletedTasks for info in stages) / tasks if tasks else None

    def words(self) -> list[str]:
        """Return the names of tables and columns, for completion."""
        return table_words(self._views.schemas, self._views.names.default)

    def warnings(self) -> list[str]:
        """Return what a reader of the newest result should know: which tables lag."""
        lagging = self._views.reading.lagging
        return [f"table {table} lags: it is read as of {describe(at)}" for table, at in lagging.items()]

    def describe_tables(self) -> str:
        """Return in one line which tables there are, as of when."""
        at = self._views.reading.position
        count = len(self._views.schemas)
        return f"source {self._paths.source}: {count} tables as of {describe(at) if at else 'nothing yet'}, Spark"

    def _describe(self, name: list[str]) -> TextResult:
        try:
            view = self._views.find(name)
            if view is None:
                rows = query_views(self._spark, self._views, f"SELECT * FROM {'.'.join(f'`{p}`' for p in name)}")
                return describe_columns([(f.name, f.dataType.simpleString()) for f in rows.schema], None)
            rows = self._views.read(view)
        except PySparkException as error:
            raise to_usage_error(error) from None
        columns = [(f.name, f.dataType.simpleString()) for f in rows.schema]
        return describe_columns(columns, self._views.schemas.get(view.table))

    def _explain(self, statement: str, mode: str) -> TextResult:
        rows = query_views(self._spark, self._views, statement)
        if not statement.strip():
            raise UsageError("EXPLAIN needs a query", next_step="write EXPLAIN SELECT …")
        jvm = self._spark._jvm
        assert jvm is not None
        plan = jvm.PythonSQLUtils.explainString(rows._jdf.queryExecution(), mode.lower())
        return TextResult(("plan",), [(str(plan),)])
