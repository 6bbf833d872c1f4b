"""Commits to one Delta table by several processes, kept apart where the file system does not do that.

A Delta table takes commits of writers that do not know of each other if its store refuses a log entry that is there
already. Azure, GCS and HDFS do, and so does delta-rs on a local disk. Spark does not on a local disk: it looks, and
then renames over whatever has come meanwhile, and another's commit would be gone. So on a local disk everybody who
commits to a table of ours holds a lock of that table's meanwhile, from where it looks how far the table is: Delta
refuses a commit for what came while it was made, not for what came between that look and its beginning.

Readers need no lock. Whether a commit that was refused is tried again is the caller's to know.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dblake.core.errors import TableUnavailable

_LOCKS = "_commits"
"""The folder beside the tables that holds their locks. No table's own, which Delta wants empty before it makes one,
and no table's name: those of ours do not begin like this."""

_LOCK_SECONDS = 3600.0
"""A holder may build a large state table from all its events, and rarely needs longer."""
_WARN_SECONDS = 60.0
_POLL_SECONDS = 0.02

logger = logging.getLogger(__name__)


@contextmanager
def committing(path: str, *, together: bool = False) -> Iterator[None]:
    """Nobody else commits to the table at ``path`` within the block, if that is on a local disk.

    ``together``: but those who say so as well. Of them the second is refused (delta-rs), and none waits for one that
    stands still. Raises TableUnavailable if the lock cannot be had, or not within an hour.

    Not to be held twice: whoever holds it waits for himself.
    """
    local = path.removeprefix("file://")
    if "://" in local:
        yield
        return
    lock = _locked(local.rstrip("/"), fcntl.LOCK_SH if together else fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def _locked(table: str, how: int) -> int:
    folder, name = os.path.split(table)
    path = os.path.join(folder, _LOCKS, f"{name}.lock")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _wait_for(lock, how, name, path)
        except BaseException:
            os.close(lock)
            raise
        return lock
    except OSError as error:
        raise TableUnavailable(
            f"the table {name} under the warehouse cannot be locked for a commit: {error.strerror}",
            next_step="see that the warehouse is there, not full, and this user's to write to; then run again",
        ) from error


def _wait_for(lock: int, how: int, name: str, path: str) -> None:
    """Take the lock; raise TableUnavailable if other processes hold it for longer than any commit should take."""
    began = time.monotonic()
    warned = False
    while True:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - began
        if waited > _LOCK_SECONDS:
            raise TableUnavailable(
                f"the table {name} under the warehouse has been locked by another job for {_LOCK_SECONDS:.0f} s",
                next_step=f"find the process with `lsof {path}` and stop it if it hangs; then run again",
            )
        if waited > _WARN_SECONDS and not warned:
            warned = True
            logger.warning("waiting for another job to release the commit lock of table %s", name)
        time.sleep(_POLL_SECONDS)
