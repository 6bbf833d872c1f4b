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
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dblake.core.errors import TableUnavailable

_LOCKS = "_commits"
"""The folder beside the tables that holds their locks. No table's own, which Delta wants empty before it makes one,
and no table's name: those of ours do not begin like this."""


@contextmanager
def committing(path: str, *, together: bool = False) -> Iterator[None]:
    """Nobody else commits to the table at ``path`` within the block, if that is on a local disk.

    ``together``: but those who say so as well. Of them the second is refused (delta-rs), and none waits for one that
    stands still. Raises TableUnavailable if the lock cannot be had.

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
    try:
        os.makedirs(os.path.join(folder, _LOCKS), exist_ok=True)
        lock = os.open(os.path.join(folder, _LOCKS, f"{name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(lock, how)
        return lock
    except OSError as error:
        raise TableUnavailable(
            f"the table {name} under the warehouse cannot be locked for a commit: {error.strerror}",
            next_step="see that the warehouse is there, not full, and this user's to write to; then run again",
        ) from error
