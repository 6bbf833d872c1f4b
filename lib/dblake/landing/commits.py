"""Commits to landing by capture and by upkeep, kept apart where the file system does not do that.

A Delta table takes commits of writers that do not know of each other if its store refuses a log entry that is there
already. Object stores and HDFS do, and so does delta-rs on a local disk. Spark does not on a local disk: it looks, and
then renames over whatever has come meanwhile, and a commit of capture's would be gone. So on a local disk both hold a
lock of the table's while they commit: capture for a moment, upkeep for as long as it works on landing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = "_commits.lock"
"""Delta passes over files whose names begin like this."""


@contextmanager
def committing(path: str) -> Iterator[None]:
    """Nobody else commits to landing at ``path`` within the block, if that is on a local disk. Raises OSError."""
    local = path.removeprefix("file://")
    if "://" in local:
        yield
        return
    lock = os.open(os.path.join(local, _LOCK), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
