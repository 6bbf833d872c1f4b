"""Commit locks: keep processes on one local disk from committing to the same Delta table at the same time.

A Delta table is safe with several writers if its store rejects a log entry that exists already. Object stores with
conditional writes do, and so does delta-rs on a local disk. Spark on a local disk does not: it checks and then renames,
which overwrites an entry written in between, and a commit is lost. On a local disk every writer therefore holds the
table's lock, from the moment it reads how far the table is until its commit is done.

Readers need no lock. Whether to retry a rejected commit is the caller's decision.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dblake.core.errors import TableUnavailable

_LOCKS = "_commits"
"""The folder beside the tables that holds their locks. It is not inside a table, because Delta requires an empty folder
to create one, and no table has this name: none begins with an underscore."""


@contextmanager
def commit_lock(path: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the commit lock of the table at ``path``. Does nothing for a table that is not on a local disk.

    Exclusive by default. ``shared`` holders exclude only exclusive ones: they are delta-rs writers, of which the table
    itself rejects the second. Not re-entrant. Raises TableUnavailable if the lock file cannot be created.
    """
    local = path.removeprefix("file://")
    if "://" in local:
        yield
        return
    lock = _lock(local.rstrip("/"), fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def _lock(table: str, operation: int) -> int:
    folder, name = os.path.split(table)
    try:
        os.makedirs(os.path.join(folder, _LOCKS), exist_ok=True)
        lock = os.open(os.path.join(folder, _LOCKS, f"{name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(lock, operation)
        return lock
    except OSError as error:
        raise TableUnavailable(
            f"the table {name} under the warehouse cannot be locked for a commit: {error.strerror}",
            next_step="check that the warehouse exists, is not full and is writable for this user; then run this again",
        ) from error
