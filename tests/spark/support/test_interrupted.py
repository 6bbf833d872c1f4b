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
    jvm = spark._jvm
    assert jvm is not None
    before = signal.signal(signal.SIGALRM, _interrupt)
    of_timeout = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(_Interruption) as kept:
            jvm.java.lang.Thread.sleep(600)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *of_timeout)
    abandon_call()
    assert [row.id for row in spark.range(3).collect()] == [0, 1, 2]
    assert kept.tb is not None
