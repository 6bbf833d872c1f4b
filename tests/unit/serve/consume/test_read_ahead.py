"""Reading ahead: in order, one item at most, errors included."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator

import pytest

from dblake.serve.consume.read_ahead import read_ahead


def test_items_come_in_order_one_ahead() -> None:
    made: queue.Queue[int] = queue.Queue()

    def numbers() -> Generator[int, None, None]:
        for number in range(5):
            made.put(number)
            yield number

    found = read_ahead(numbers())
    for number in range(5):
        assert next(found) == number
        if number == 0:
            assert made.get(timeout=10) == 0
        if number < 4:
            assert made.get(timeout=10) == number + 1
        assert made.empty()
    assert list(found) == []


def test_consumer_that_stops_ends_reading() -> None:
    has_closed = threading.Event()

    def numbers() -> Generator[int, None, None]:
        try:
            yield from range(1000)
        finally:
            has_closed.set()

    found = read_ahead(numbers())
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    assert has_closed.wait(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_error_of_reading_reaches_consumer_in_place() -> None:
    def numbers() -> Generator[int, None, None]:
        yield 1
        raise OSError("the disk is gone")

    found = read_ahead(numbers())
    assert next(found) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)
