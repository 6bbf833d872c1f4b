"""Run one SQL query over a source's tables: reject what is not a query, create the views it names, return its result.

Place: between ``sql.views`` and ``jobs.sql``. Guarantee: Spark's own parser decides what a statement is and which names
it uses, so neither is guessed from the text; every fault of a statement is a UsageError of one line without row values.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from dblake.core.errors import UsageError
from dblake.core.position import Position
from dblake.lake.frontier import Frontier, read_frontier
from dblake.lake.layout import Paths
from dblake.lake.tables import has_table
from dblake.sql.views import Views

_REJECTED_NODES = ("plans.logical.Command", "plans.logical.ParsedStatement")
_RELATION_NODE = "analysis.UnresolvedRelation"


def query(spark: SparkSession, paths: Paths, statement: str, at: Frontier | None = None) -> DataFrame:
    """Return the statement's result, not yet computed; with ``at``, as of that row of the frontier.

    Raises UsageError for a statement that is not a query or that Spark cannot parse or resolve.
    """
    try:
        plan = _parse(spark, statement)
        nodes = list(_walk(plan))
        for node in nodes:
            if any(_is_instance(spark, node, kind) for kind in _REJECTED_NODES):
                raise UsageError(f"{node.nodeName()} is not a query, and sql only reads", next_step="write a SELECT")
        relations = [node.multipartIdentifier() for node in nodes if _is_instance(spark, node, _RELATION_NODE)]
        Views(spark, paths, at).create([[r.apply(i) for i in range(r.size())] for r in relations])
        return spark.sql(statement)
    except PySparkException as error:
        raise to_usage_error(error) from None


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
    condition = error.getCondition() or type(error).__name__
    return UsageError(f"the query failed while running: {condition}", next_step="correct the query")


def read_frontier_at(paths: Paths, text: str) -> Frontier:
    """Return the newest point that state recorded at or before a position (``1/4711``) or an ISO time.

    A time without a zone is UTC. Raises UsageError for a text that is neither, and if there is no such point.
    """
    if not has_table(paths.frontier):
        raise UsageError("state has not been folded yet", next_step="run ./spark-submit.sh state")
    until: Position | datetime
    try:
        if "/" in text:
            until = Position.parse(text)
        else:
            moment = datetime.fromisoformat(text)
            until = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"--at {text} is neither a position nor a time",
                         next_step="write 1/4711 or 2024-01-31T12:00:00") from None
    frontier = read_frontier(paths, until=until)
    if frontier.position is None:
        raise UsageError(f"state recorded no point at or before {text}",
                         next_step="SELECT * FROM dblake.frontier lists the recorded points")
    return frontier


def _parse(spark: SparkSession, statement: str) -> Any:
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)


def _is_instance(spark: SparkSession, node: Any, kind: str) -> bool:
    jvm: Any = spark._jvm
    return bool(jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.{kind}").isInstance(node))


def _walk(plan: Any) -> Iterator[Any]:
    """Yield a plan's nodes, those of subqueries and WITH clauses included."""
    yield plan
    for children in (plan.children(), plan.innerChildren()):
        for index in range(children.size()):
            node = children.apply(index)
            if hasattr(node, "innerChildren"):
                yield from _walk(node)
