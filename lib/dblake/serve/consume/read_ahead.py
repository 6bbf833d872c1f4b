"""Read the next portion of rows in a thread while the consumer handles the one before.

Place: between ``event_table``, whose reading releases Python's lock, and ``transactions``. Guarantee: memory holds one
portion more than the consumer has taken, and none is read after the consumer has stopped.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(items: Generator[Item, None, None]) -> Iterator[Item]:
    """Yield items; make the next one while the caller handles one. Raise any error from making it."""
    end = object()
    with closing(items), ThreadPoolExecutor(1, "read-ahead") as reader:
        following = reader.submit(next, items, end)
        while (item := following.result()) is not end:
            following = reader.submit(next, items, end)
            yield item  # type: ignore[misc]
