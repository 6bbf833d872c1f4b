"""Tables as the suites read them: in process and through Spark alike."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from dblake.operate.quality.pinned import pin_table

COLUMNS = {
    "n": pa.array([1, None, 2**62], pa.int64()), "small": pa.array([1, None, -1], pa.int16()),
    "real": pa.array([0.5, None, float("nan")]),
    "amount": pa.array([Decimal("1.20"), None, Decimal(0)], pa.decimal128(12, 2)),
    "text": pa.array(["ä", None, ""]), "raw": pa.array([b"\0", None, b""]), "is_it": pa.array([True, None, False]),
    "day": pa.array([date(2026, 1, 31), None, date(1, 1, 1)]),
    "at": pa.array(
        [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1960, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")
    ),
    "local": pa.array([datetime(2026, 3, 29, 2, 30), None, datetime(1960, 1, 1)], pa.timestamp("us")),
    "list": pa.array([["a", None], None, []], pa.list_(pa.string())),
    "image": pa.array([[("a", None)], None, []], pa.map_(pa.string(), pa.string())),
}


def write(folder: Path, rows: pa.Table) -> str:
    properties = CommitProperties(app_transactions=[Transaction("app", 7)])
    write_deltalake(str(folder), rows, mode="append", commit_properties=properties)
    return str(folder)


@pytest.mark.parametrize("count", [3, 0])
def test_pinned_table_is_read_alike_in_process_and_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = write(tmp_path / "t", pa.table(COLUMNS).slice(0, count))
    here = pin_table(spark, path, "app")
    assert here is not None and (here.version, here.batch, here.rows.count()) == (0, 7, count)
    with monkeypatch.context() as patch:
        patch.setattr("dblake.operate.quality.pinned._LITTLE_BYTES", -1)
        there = pin_table(spark, path, "app")
        assert there is not None and bool(there.rows.inputFiles()) == (count > 0)
    assert not here.rows.inputFiles()
    assert here.rows.dtypes == there.rows.dtypes
    assert repr(here.rows.collect()) == repr(there.rows.collect())


def test_pinned_table_reads_its_version_after_later_commits(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "t", pa.table({"n": [1]}))
    pinned = pin_table(spark, path, "app")
    write(tmp_path / "t", pa.table({"n": [2]}))
    assert pinned is not None and [row.n for row in pinned.rows.collect()] == [1]


def test_pinned_table_without_its_file_raises_error_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "t", pa.table({"n": [1]}))
    (file,) = DeltaTable(path).file_uris()
    Path(file.removeprefix("file://")).unlink()
    pinned = pin_table(spark, path, "app")
    assert pinned is not None
    with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
        pinned.rows.collect()


def test_table_without_commit_of_application_is_not_pinned(spark: SparkSession, tmp_path: Path) -> None:
    assert pin_table(spark, write(tmp_path / "t", pa.table({"n": [1]})), "other") is None
    assert pin_table(spark, str(tmp_path / "none"), "app") is None
