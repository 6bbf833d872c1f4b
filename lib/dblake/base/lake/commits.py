"""Commits whose answer was lost: read from the table's log whether a commit that failed is there after all.

On object storage a commit is one conditional PUT. If its answer is lost, delta-rs does not repeat it and reports an
error; if the store acted and then answered 5xx, delta-rs repeats it, finds its own entry and reports a conflict with
another writer (both seen). So every commit carries an identifier of its own in its metadata. Guarantee: a commit that
is in the log is reported as done, and one that is not there is reported as failed. A local disk loses no answers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from dblake.base.lake.panics import hidden_panics
from dblake.base.lake.storage import is_local
from dblake.base.lake.tables import open_table

COMMIT_ID = "dblake.commit"
"""Key of commit metadata: names one attempt to commit, whatever it holds."""
COMPACTS = "dblake.compacts"
"""Key of commit metadata: the commit changes no row; the value is the number of files that it merges."""
_SEARCHED_COMMITS = 50

logger = logging.getLogger(__name__)


def new_commit_id() -> str:
    """Return a new identifier for one commit."""
    return uuid.uuid4().hex


def has_commit(table: DeltaTable, commit_id: str) -> bool:
    """Return True if a commit is among the newest of an open table."""
    return any(commit.get(COMMIT_ID) == commit_id for commit in table.history(_SEARCHED_COMMITS))


@contextmanager
def confirmed_commit(path: str) -> Iterator[dict[str, str]]:
    """Yield commit metadata for the one commit that the block makes; if that fails but is in the log, end normally.

    The block's table may then be behind: update it before the next use.
    """
    commit_id = new_commit_id()
    try:
        with hidden_panics():
            yield {COMMIT_ID: commit_id}
    except (DeltaError, OSError):
        if is_local(path):
            raise
        try:
            is_there = has_commit(open_table(path), commit_id)
        except (DeltaError, OSError):
            is_there = False
        if not is_there:
            raise
        logger.warning("a commit to %s succeeded, but its answer was lost", path.rstrip("/").rpartition("/")[2])
