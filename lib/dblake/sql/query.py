"""One SQL statement over a source's tables: checked to be a read, its views made, run.

Spark's own parser says what a statement is and which names it uses, so that neither is guessed from its text. What is
wrong with a statement is its writer's: every fault is a UsageError of one line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from dblake.core.errors import UsageError
from dblake.core.position import Position
from dblake.lake.frontier import Frontier, read_frontier
from dblake.lake.layout import Paths
from dblake.sql.views import Views

_NO_READS = ("plans.logical.Command", "plans.logical.ParsedStatement")
_RELATION = "analysis.UnresolvedRelation"


def query(spark: SparkSession, paths: Paths, statement: str, at: Frontier | None = None) -> DataFrame:
    """The statement's result, not yet computed. Raises UsageError for what is no read or cannot be understood."""
    try:
        plan = _parsed(spark, statement)
        nodes = list(_nodes(plan))
        for node in nodes:
            if any(_is(spark, node, kind) for kind in _NO_READS):
                raise UsageError(f"{node.nodeName()} is not a query, and sql only reads", next_step="write a SELECT")
        relations = [node.multipartIdentifier() for node in nodes if _is(spark, node, _RELATION)]
        Views(spark, paths, at).make([[r.apply(i) for i in range(r.size())] for r in relations])
        return spark.sql(statement)
    except PySparkException as error:
        raise fault(error) from None


def quiet(spark: SparkSession) -> None:
    """Lets a statement's fault be told once, by ``fault``: Spark's own reports of it are long and show values."""
    spark.sparkContext.setLogLevel("FATAL")
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def fault(error: PySparkException) -> UsageError:
    """What is wrong with a statement, in one line without values of rows."""
    if isinstance(error, (AnalysisException, ParseException)):
        # Spark says more, with the statement and plans, on further lines.
        said = str(error).strip().splitlines()[0].partition(" SQLSTATE:")[0].rstrip(".")
        return UsageError(said, next_step="mend the statement")
    condition = error.getCondition() or type(error).__name__
    return UsageError(f"the statement failed while running: {condition}", next_step="mend the statement")


def frontier_at(paths: Paths, text: str) -> Frontier:
    """Return the newest point that state recorded at or before a position (``1/4711``) or an ISO time.

    A time without a zone is UTC. Raises UsageError for a text that is neither, and if there is no such point.
    """
    if not DeltaTable.is_deltatable(paths.frontier):
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


def _parsed(spark: SparkSession, statement: str) -> Any:
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)


def _is(spark: SparkSession, node: Any, kind: str) -> bool:
    jvm: Any = spark._jvm
    return bool(jvm.java.lang.Class.forName(f"org.apache.spark.sql.catalyst.{kind}").isInstance(node))


def _nodes(plan: Any) -> Iterator[Any]:
    """A plan and all below it, subqueries and WITH clauses included."""
    yield plan
    for inner in (plan.children(), plan.innerChildren()):
        for place in range(inner.size()):
            node = inner.apply(place)
            if hasattr(node, "innerChildren"):
                yield from _nodes(node)
