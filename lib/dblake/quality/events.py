"""What events promise: one position each, in the order of batches, whole images under schemas that are known.

Two frames. ``order`` has a row for each batch. Landing takes the log in its order and a dumped row stands at its high
watermark, in the batch that holds it; so all events of a batch come after those of the batches before, of one key as of
all. ``rows`` has a row for each event, without its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from dblake.core.schema import TableSchema
from dblake.decode.columns import CREATE, DELETE, FILL, READ, TRUNCATE, UPDATE
from dblake.events.schema import DUMP, LOG, ORIGIN, POSITION
from dblake.quality.suite import Expectation, never, not_null, one_of, unique

_IMAGE_OPS = (CREATE, UPDATE, READ, FILL)

ORDER_EXPECTED: tuple[Expectation, ...] = (
    never("position_fell", "events of a batch come after all events of the batches before, those of a key included"),
)

ROWS_EXPECTED: tuple[Expectation, ...] = (
    *(not_null(name, f"every event has its {name}") for name in (*POSITION, "batch", "table", "op", ORIGIN)),
    unique(POSITION, "no two events share a position"),
    one_of("op", [*_IMAGE_OPS, DELETE, TRUNCATE], "an event is a create, update, delete, read, fill or truncate"),
    one_of(ORIGIN, [LOG, DUMP], "an event is the log's or a dump's"),
    never("lacks_key", "an event of a row has the row's key, whole"),
    never("lacks_image", "a create, update, read or fill has an after image"),
    never("unknown_schema", "every event's schema is known"),
    never("columns_lost", "an image that lacks columns of its schema is marked as partial"),
    never("null_in_not_null", "a column that is NOT NULL at the source is never NULL: not sent is absent"),
)

_FACTS = StructType([
    StructField("f_schema", StringType()), StructField("f_table", StringType()), StructField("keyed", BooleanType()),
    StructField("columns", LongType()), StructField("required", ArrayType(StringType())),
])


def required(versions: Sequence[TableSchema]) -> tuple[str, ...]:
    """Columns that are NOT NULL in every version of a table's schema.

    In one version is not enough: rows from before it may still be told, and be stood by.
    """
    sets = [{c.name for c in schema.columns if not c.nullable} for schema in versions]
    return tuple(name for name in versions[-1].names if all(name in names for names in sets))


def schema_facts(spark: SparkSession, schemas: Mapping[str, Sequence[TableSchema]]) -> DataFrame:
    """What ``rows`` must know of each schema; ``schemas`` has all versions of each table."""
    facts = {
        (schema.schema_id, table, bool(schema.primary_key), len(schema.columns), required(versions))
        for table, versions in schemas.items() for schema in versions
    }
    return spark.createDataFrame([(*fact[:4], list(fact[4])) for fact in sorted(facts)], _FACTS)


def order(events: DataFrame) -> DataFrame:
    """A row for each batch. The first has nothing before it: give one more than is to be looked at."""
    place, transaction = F.struct(*POSITION), F.struct(*POSITION[:2])
    log = F.col(ORIGIN) == LOG
    found = events.groupBy("batch").agg(
        F.min(F.when(log, place)).alias("first_log"), F.max(F.when(log, place)).alias("last_log"),
        F.min(transaction).alias("first"), F.max(transaction).alias("last"),
    )
    before = Window.orderBy("batch").rowsBetween(Window.unboundedPreceding, -1)
    # A transaction that two batches share is the log's alone: there its rows' numbers decide.
    fell = (F.col("first") < F.max("last").over(before))
    log_fell = F.col("first_log") <= F.max("last_log").over(before)
    return found.select(
        "batch", (F.coalesce(fell, F.lit(False)) | F.coalesce(log_fell, F.lit(False))).alias("position_fell")
    )


def rows(events: DataFrame, facts: DataFrame) -> DataFrame:
    """A row for each event, with what is wrong with it; ``facts`` are those of ``schema_facts``."""
    own = (F.col("schema_id") == F.col("f_schema")) & (F.col("table") == F.col("f_table"))
    of_row, after = F.col("op") != TRUNCATE, F.col("after")
    known = F.col("f_schema").isNotNull()
    size = F.size(after)
    # The first look is cheap, and mostly enough: hardly an image has a NULL where none may be.
    has_null = F.exists(F.map_values(after), lambda value: value.isNull())
    wrong_null = F.exists("required", lambda name: F.map_contains_key(after, name) & after[name].isNull())
    marked = F.coalesce(F.col("partial"), F.lit(False))
    whole_key = (F.size("key") > 0) & ~F.exists(F.map_values("key"), lambda value: value.isNull())
    wrong = {
        "lacks_key": of_row & F.col("keyed") & (F.col("key").isNull() | ~whole_key),
        "lacks_image": F.col("op").isin(*_IMAGE_OPS) & after.isNull(),
        "unknown_schema": of_row & ~known,
        "columns_lost": known & ((size > F.col("columns")) | ((size < F.col("columns")) & ~marked)),
        "null_in_not_null": known & has_null & wrong_null,
    }
    return events.join(F.broadcast(facts), own, "left").select(
        *POSITION, "batch", "table", "op", ORIGIN,
        *(F.coalesce(condition, F.lit(False)).alias(name) for name, condition in wrong.items()),
    )
