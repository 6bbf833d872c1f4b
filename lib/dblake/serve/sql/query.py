"""Run one SQL query over a source's tables: reject what is not a query, create the views it names, return its result.

Place: between ``sql.views`` and ``jobs.sql``. Guarantee: Spark's own parser decides what a statement is and which names
it uses, so neither is guessed from the text. A part of a statement that is not listed here is rejected: it might write,
run a program, or read something other than views. Every fault is a UsageError of one line without row values.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from dblake.base.core.errors import UsageError
from dblake.base.core.transient import transient_reason
from dblake.base.lake.layout import Paths
from dblake.serve.sql.views import Views

_QUERY_NODES = frozenset({
    "Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin",
    "LimitAll", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "PipeOperator", "Pivot", "Project",
    "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union", "Unpivot", "UnresolvedHaving",
    "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedQualify", "UnresolvedRelation",
    "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "UnresolvedTableValuedFunction", "UnresolvedWith",
    "WithWindowDefinition",
})
_FORBIDDEN_FUNCTIONS = frozenset({
    # They call any method of a class, read files that an option or argument names, or read tables by path.
    "from_avro", "from_protobuf", "from_xml", "java_method", "python_worker_logs", "reflect", "schema_of_avro",
    "schema_of_xml", "table_changes", "table_changes_by_path", "to_avro", "to_protobuf", "try_reflect",
})
#: The twin of the macro in ``engine``: the elements of a PostgreSQL array of one dimension, as text.
_FUNCTIONS = {
    "array_of": r"""CREATE TEMPORARY FUNCTION array_of(value STRING) RETURNS ARRAY<STRING> RETURN
    transform(regexp_extract_all(regexp_replace(value, '^\\[[^=]*\\]=', ''), '"(?:[^"\\\\]|\\\\.)*"|[^{},]+', 0),
    e -> CASE WHEN e = 'NULL' THEN NULL WHEN startswith(e, '"')
    THEN regexp_replace(substr(e, 2, length(e) - 2), '\\\\(.)', '$1') ELSE e END)""",
}
_RELATION_NODE = "UnresolvedRelation"


def query(spark: SparkSession, paths: Paths, statement: str, at: str | None = None) -> DataFrame:
    """Return the statement's result, not yet computed; with ``at``, as of that point.

    Raises UsageError for a statement that is not a query or that Spark cannot parse or resolve.
    """
    return query_views(spark, Views(spark, paths, at), statement)


def query_views(spark: SparkSession, views: Views, statement: str) -> DataFrame:
    """Return the statement's result, not yet computed, over views that are created as it names them.

    Raises as ``query`` does.
    """
    try:
        plan = _parse(spark, statement)
        nodes = list(_walk(plan))
        for node in nodes:
            if node.nodeName() not in _QUERY_NODES:
                raise UsageError(f"{node.nodeName()} is not a query, and sql only reads", next_step="write a SELECT")
        relations = [node.multipartIdentifier() for node in nodes if node.nodeName() == _RELATION_NODE]
        views.create([[r.apply(i) for i in range(r.size())] for r in relations])
        for name, definition in _FUNCTIONS.items():
            if not spark.catalog.functionExists(name):
                spark.sql(definition)
        return spark.sql(statement)
    except PySparkException as error:
        raise to_usage_error(error) from None


def forbid_functions(spark: SparkSession) -> None:
    """Remove the functions that reach more than their arguments from a session, for queries of other people."""
    state = spark._jsparkSession.sessionState()
    for registry in (state.functionRegistry(), state.tableFunctionRegistry()):
        names = registry.listFunction()
        for name in [names.apply(index) for index in range(names.size())]:
            if name.funcName() in _FORBIDDEN_FUNCTIONS:
                registry.dropFunction(name)


def silence_spark(spark: SparkSession) -> None:
    """Suppress Spark's own reports of failed queries, which are long and show row values.

    ``to_usage_error`` reports the fault instead.
    """
    spark.sparkContext.setLogLevel("FATAL")
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def to_usage_error(error: PySparkException) -> UsageError:
    """Return the error for a failed query, in one line without row values."""
    if isinstance(error, (AnalysisException, ParseException)):
        # Spark adds the statement and its plans on further lines.
        message = str(error).strip().splitlines()[0].partition(" SQLSTATE:")[0].rstrip(".")
        return UsageError(message, next_step="correct the query")
    condition = error.getCondition() or transient_reason(error) or "Spark gives no condition"
    return UsageError(f"the query failed while running: {condition}", next_step="correct the query")


def _parse(spark: SparkSession, statement: str) -> Any:
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)


def _walk(plan: Any) -> Iterator[Any]:
    """Yield a plan's nodes, including subqueries and WITH clauses."""
    yield plan
    for children in (plan.children(), plan.innerChildren()):
        for index in range(children.size()):
            node = children.apply(index)
            if hasattr(node, "innerChildren"):
                yield from _walk(node)
