"""Retry commits that lost a conflict with another writer, each time from a fresh read, as Delta requires.

Place: around the functions of state and maintenance that commit. State's MERGE and maintenance's OPTIMIZE and DELETE
may touch the same files; one of two such commits fails and changes nothing. The decorated function must read everything
it decides on, since all of it is repeated.
"""

from __future__ import annotations

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

# Delta's Python classes are siblings: DeltaConcurrentModificationException does not catch the others.
_CONFLICTS = (
    ConcurrentAppendException, ConcurrentDeleteDeleteException, ConcurrentDeleteReadException,
    ConcurrentTransactionException, ConcurrentWriteException, DeltaConcurrentModificationException,
    MetadataChangedException, ProtocolChangedException,
)

_MAX_ATTEMPTS = 8

#: Decorator: call the function again after a conflict, with random exponential back-off, up to ``_MAX_ATTEMPTS`` times.
retry_on_conflict = retry(
    retry=retry_if_exception_type(_CONFLICTS),
    stop=stop_after_attempt(_MAX_ATTEMPTS), wait=wait_random_exponential(multiplier=0.2, max=10), reraise=True,
)
