"""What recurs is reported once an interval."""

from __future__ import annotations

import time

from dblake.base.core.intervals import Interval


def test_interval_is_due_at_once_and_after_its_pause() -> None:
    pause = Interval(0.05)
    assert [pause.is_due() for _ in range(3)] == [True, False, False]
    time.sleep(0.06)
    assert [pause.is_due() for _ in range(2)] == [True, False]
