"""Commits that lost to another writer's: tried again from a fresh read, the only way Delta has.

State's MERGE and upkeep's OPTIMIZE and DELETE may touch the same files at the same time; one of two then fails and has
changed nothing. What is tried again must read anew what it is about, so it is the whole function.
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

# Delta's Python classes are siblings: the one named after all of them catches none of the others.
_CONFLICTS = (
    ConcurrentAppendException, ConcurrentDeleteDeleteException, ConcurrentDeleteReadException,
    ConcurrentTransactionException, ConcurrentWriteException, DeltaConcurrentModificationException,
    MetadataChangedException, ProtocolChangedException,
)

#: Decorator: the function is called again if its commit lost, eight times in all.
retry_on_conflict = retry(
    retry=retry_if_exception_type(_CONFLICTS),
    stop=stop_after_attempt(8), wait=wait_random_exponential(multiplier=0.2, max=10), reraise=True,
)
