"""Invariants of events: unique positions, batches in order, whole images, known schemas.

Place: between events and ``quality.run``. Reduces events to two frames: ``summarize_order`` has one row per batch,
``evaluate_events`` one row per event, without its values. Landing takes the log in order. A dumped row has the
position of its chunk's high watermark, in the batch that holds that watermark. So every event of a batch comes after
all events of the batches before it. The caller decides which batches to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.operate.quality.suite import Expectation, expect_no_violation, expect_not_null, expect_one_of, expect_unique
from dblake.transform.events.files import DUMP, LOG, ORIGIN

_IMAGE_OPS = (Op.CREATE, Op.UPDATE, Op.READ, Op.FILL)

ORDER_EXPECTATIONS: tuple[Expectation, ...] = (
    expect_no_violation("position_fell", "every event of a batch comes after all events of the batches before"),
)

EVENT_EXPECTATIONS: tuple[Expectation, ...] = (
    *(expect_not_null(name, f"every event has its {name}")
      for name in (*Position.COLUMNS, "batch", "table", "op", ORIGIN)),
    expect_unique(Position.COLUMNS, "no two events share a position"),
    expect_one_of("op", [*_IMAGE_OPS, Op.DELETE, Op.TRUNCATE],
                  "an event is a create, update, delete, read, fill or truncate"),
    expect_one_of(ORIGIN, [LOG, DUMP], "an event comes from the log or from a dump"),
    expect_no_violation("lacks_key", "a row event has every column of the row's key"),
    expect_no_violation("lacks_image", "a create, update, read or fill has an after image"),
    expect_no_violation("unknown_schema", "every event's schema is recorded"),
    expect_no_violation("columns_lost", "an image that lacks columns of its schema is marked as partial"),
    expect_no_violation("null_in_not_null",
                        "a NOT NULL column of the source is never NULL; a value not sent is absent"),
)

_FACTS = StructType([
    StructField("f_schema", StringType()), StructField("f_table", StringType()), StructField("keyed", BooleanType()),
    StructField("columns", LongType()), StructField("required", ArrayType(StringType())),
])


def required_columns(versions: Sequence[TableSchema]) -> tuple[str, ...]:
    """Return the columns that are NOT NULL in every version of a table's schema, in the newest version's order.

    NOT NULL in one version is not enough: events may still carry rows from before that version.
    """
    sets = [{c.name for c in schema.columns if not c.nullable} for schema in versions]
    return tuple(name for name in versions[-1].names if all(name in names for names in sets))


def build_schema_facts(spark: SparkSession, schemas: Mapping[str, Sequence[TableSchema]]) -> DataFrame:
    """Return one row per schema version, as ``evaluate_events`` requires; ``schemas`` has all versions of each table.

    Returns: f_schema, f_table, keyed, columns (their number), required (names of ``required_columns``).
    """
    facts = {
        (schema.schema_id, table, bool(schema.primary_key), len(schema.columns), required_columns(versions))
        for table, versions in schemas.items() for schema in versions
    }
    return spark.createDataFrame([(*fact[:4], list(fact[4])) for fact in sorted(facts)], _FACTS)


def summarize_order(events: DataFrame) -> DataFrame:
    """Return one row per batch: batch, and position_fell (boolean).

    Requires: batch, incarnation, lsn, seq, origin. The first batch has no predecessor, so the caller adds the batch
    before the first one to check.
    """
    position, transaction = F.struct(*Position.COLUMNS), F.struct(*Position.COLUMNS[:2])
    is_log = F.col(ORIGIN) == LOG
    batches = events.groupBy("batch").agg(
        F.min(F.when(is_log, position)).alias("first_log"), F.max(F.when(is_log, position)).alias("last_log"),
        F.min(transaction).alias("first"), F.max(transaction).alias("last"),
    )
    earlier = W.orderBy("batch").rowsBetween(W.unboundedPreceding, -1)
    # Only log transactions span batches, and within one the sequence numbers decide.
    fell = F.col("first") < F.max("last").over(earlier)
    log_fell = F.col("first_log") <= F.max("last_log").over(earlier)
    return batches.select(
        "batch", (F.coalesce(fell, F.lit(False)) | F.coalesce(log_fell, F.lit(False))).alias("position_fell")
    )


def evaluate_events(events: DataFrame, facts: DataFrame) -> DataFrame:
    """Return one row per event with a boolean per rule, true if the event violates it.

    Requires of events: incarnation, lsn, seq, batch, table, op, origin, key, after, partial, schema_id; ``facts`` is
    the frame of ``build_schema_facts``.
    Returns: incarnation, lsn, seq, batch, table, op, origin, and the booleans lacks_key, lacks_image, unknown_schema,
    columns_lost, null_in_not_null.
    """
    has_schema = (F.col("schema_id") == F.col("f_schema")) & (F.col("table") == F.col("f_table"))
    is_row, after = F.col("op") != Op.TRUNCATE, F.col("after")
    is_known = F.col("f_schema").isNotNull()
    size = F.size(after)
    # A cheap test first: hardly any image has a NULL in a NOT NULL column.
    has_null = F.exists(F.map_values(after), lambda value: value.isNull())
    has_wrong_null = F.exists("required", lambda name: F.map_contains_key(after, name) & after[name].isNull())
    is_partial = F.coalesce(F.col("partial"), F.lit(False))
    has_whole_key = (F.size("key") > 0) & ~F.exists(F.map_values("key"), lambda value: value.isNull())
    violations = {
        "lacks_key": is_row & F.col("keyed") & (F.col("key").isNull() | ~has_whole_key),
        "lacks_image": F.col("op").isin(*_IMAGE_OPS) & after.isNull(),
        "unknown_schema": is_row & ~is_known,
        "columns_lost": is_known & ((size > F.col("columns")) | ((size < F.col("columns")) & ~is_partial)),
        "null_in_not_null": is_known & has_null & has_wrong_null,
    }
    return events.join(F.broadcast(facts), has_schema, "left").select(
        *Position.COLUMNS, "batch", "table", "op", ORIGIN,
        *(F.coalesce(condition, F.lit(False)).alias(name) for name, condition in violations.items()),
    )
