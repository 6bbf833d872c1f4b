"""Commit locks: keep processes on one local disk from committing to the same Delta table at the same time.

A Delta table is safe with several writers if its store rejects a log entry that exists already. Object stores with
conditional writes do, and so does delta-rs on a local disk. Spark on a local disk does not: it checks and then renames,
which overwrites an entry written in between, and a commit is lost. On a local disk every writer therefore holds the
table's lock, from the moment it reads how far the table is until its commit is done.

Readers need no lock. Whether to retry a rejected commit is the caller's decision.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dblake.base.core.errors import StorageDenied, TableUnavailable
from dblake.base.core.transient import storage_fault

_LOCKS = "_commits"
"""The folder beside the tables that holds their locks. It is not inside a table, because Delta requires an empty folder
to create one, and no table has this name: none begins with an underscore."""
_LOCK_SECONDS = 3600.0
"""A holder may rebuild a large state table from all its events, and rarely needs longer."""
_WARN_SECONDS = 60.0
_POLL_SECONDS = 0.02

logger = logging.getLogger(__name__)


@contextmanager
def commit_lock(path: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the commit lock of the table at ``path``. Does nothing for a table that is not on a local disk.

    Exclusive by default. ``shared`` holders exclude only exclusive ones: they are delta-rs writers, of which the table
    itself rejects the second. Not re-entrant. Raises StorageDenied if this user may not write the lock file,
    TableUnavailable if it cannot be created for another reason, or if other processes hold the lock for longer than an
    hour.
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
    path = os.path.join(folder, _LOCKS, f"{name}.lock")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _wait_for(lock, operation, name, path)
        except BaseException:
            os.close(lock)
            raise
        return lock
    except OSError as error:
        what = f"the table {name} under the warehouse cannot be locked for a commit"
        fault = storage_fault(error)
        if fault:
            raise StorageDenied(f"{what}: {fault.reason}", next_step=fault.next_step) from error
        raise TableUnavailable(
            f"{what}: {error.strerror}", next_step="check that the warehouse exists and is not full; then run it again"
        ) from error


def _wait_for(lock: int, operation: int, name: str, path: str) -> None:
    """Take the lock. Raises TableUnavailable if other processes hold it for longer than any commit should take."""
    began = time.monotonic()
    has_warned = False
    while True:
        try:
            fcntl.flock(lock, operation | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - began
        if waited > _LOCK_SECONDS:
            raise TableUnavailable(
                f"the table {name} under the warehouse has been locked by another job for {_LOCK_SECONDS:.0f} s",
                next_step=f"find the process with `lsof {path}` and stop it if it hangs; then run this again",
            )
        if waited > _WARN_SECONDS and not has_warned:
            has_warned = True
            logger.warning("waiting for another job to release the commit lock of table %s", name)
        time.sleep(_POLL_SECONDS)
