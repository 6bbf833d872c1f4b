"""A Spark session after a call that was interrupted."""

from __future__ import annotations

import signal
from types import FrameType

import pytest
from pyspark.sql import SparkSession

from tests.support.interrupted import abandon_call


class _Interruption(BaseException):
    """What pytest-timeout does: an exception of the signal's handler."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interruption


def test_session_after_interrupted_call_answers_the_next(spark: SparkSession) -> None:
    """The failed test's traceback keeps the connection alive, as pytest does."""
    statement = spark.sql("SELECT java_method('java.lang.Thread', 'sleep', 600L), 'late' AS answer")
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(_Interruption) as kept:
            statement.collect()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    abandon_call()
    assert [row.id for row in spark.range(3).collect()] == [0, 1, 2]
    assert kept.tb is not None
