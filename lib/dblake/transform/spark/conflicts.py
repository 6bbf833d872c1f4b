"""Retry commits that lost a conflict with another writer, each time from a fresh read, as Delta requires.

Place: around the functions of state, redecode and maintenance that commit, through delta-rs or Spark. State's upsert
and maintenance's OPTIMIZE and DELETE may touch the same files; one of two such commits fails and changes nothing. The
decorated function must read everything it decides on, since all of it is repeated.
"""

from __future__ import annotations

from deltalake.exceptions import CommitFailedError
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

# Delta's Python classes are siblings: DeltaConcurrentModificationException does not catch the others. They are given
# by name, because importing them imports PySpark; the session has done so before anything could raise one.
_CONFLICTS_MODULE = "delta.exceptions"
_CONFLICTS = frozenset({
    "ConcurrentAppendException", "ConcurrentDeleteDeleteException", "ConcurrentDeleteReadException",
    "ConcurrentTransactionException", "ConcurrentWriteException", "DeltaConcurrentModificationException",
    "MetadataChangedException", "ProtocolChangedException",
})

_MAX_ATTEMPTS = 8


def _is_conflict(error: BaseException) -> bool:
    kind = type(error)
    is_of_spark = kind.__module__.startswith(_CONFLICTS_MODULE) and kind.__name__ in _CONFLICTS
    return is_of_spark or isinstance(error, CommitFailedError)


#: Decorator: call the function again after a conflict, with random exponential back-off, up to ``_MAX_ATTEMPTS`` times.
retry_on_conflict = retry(
    retry=retry_if_exception(_is_conflict),
    stop=stop_after_attempt(_MAX_ATTEMPTS), wait=wait_random_exponential(multiplier=0.2, max=10), reraise=True,
)
