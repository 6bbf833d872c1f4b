"""Append-only Delta tables as reconcile's pipeline sees them: made once, appended to once for each landing batch.

Every append carries the number of the newest landing batch in it, as a Delta transaction identifier. So a table
itself says how far it is, whatever became of a stream checkpoint, and Delta refuses what was appended before.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from pipelines.stages import newest_batch


@dataclass(frozen=True, slots=True)
class AppendTable:
    """One table. ``application`` is its transaction identifier, ``prune_by`` the columns readers prune files by.

    ``earlier`` is a table, as a path, of which all rows from before a landing batch count as this one's, too.
    """

    spark: SparkSession
    path: str
    application: str
    columns: StructType
    prune_by: tuple[str, ...]
    earlier: tuple[str, int] | None = None

    def make(self) -> None:
        """Makes the table if there is none; one with an earlier one begins where that one's rows end."""
        if not DeltaTable.is_deltatable(self.path):
            names = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in self.columns)
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS delta.`{self.path}` ({names}) USING delta "
                f"TBLPROPERTIES ('delta.dataSkippingStatsColumns' = '{','.join(self.prune_by)}')"
            )
        if self.earlier:
            note_batch(self.path, self.application, self.earlier[1] - 1)

    def done(self) -> int:
        """The newest landing batch appended; 0 before the first."""
        return newest_batch(self.path, self.application)

    def append(self, rows: DataFrame, batch: int) -> None:
        """Appends the rows that ``batch`` is the newest batch of; nothing happens if that was done before."""
        rows.write.format("delta").mode("append").options(txnAppId=self.application, txnVersion=batch).save(self.path)

    def append_nothing(self, batch: int) -> None:
        """Notes that the batches up to ``batch`` hold nothing for this table: a commit without a file or a job."""
        note_batch(self.path, self.application, batch)

    def rows(self) -> DataFrame:
        """The table as it is now."""
        own = self.spark.read.format("delta").load(self.path)
        if self.earlier is None:
            return own
        path, batch = self.earlier
        return self.spark.read.format("delta").load(path).where(F.col("batch") < batch).unionByName(own)


def consolidated(source: str) -> str:
    """The application under which events say up to which batch upkeep may have removed some."""
    return f"maintain/{source}"


def decoded_again(source: str) -> str:
    """The application under which a table says which run of decoding again its rows come from."""
    return f"again/{source}"


def note_batch(path: str, application: str, batch: int) -> None:
    """Notes in a table's own log that an application has come to a landing batch: a commit without a file."""
    table = DeltaTable(path)
    # Never backwards: delta-rs refuses the commit if anybody else has moved this number on since the line above.
    if (table.transaction_version(application) or 0) < batch:
        noted = CommitProperties(app_transactions=[Transaction(application, batch)])
        table.create_write_transaction([], "append", table.schema(), commit_properties=noted)
