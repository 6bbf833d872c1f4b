"""The newest landing batch with rows of dumps, as progress counts on it: dumps that are done are not read again.

Progress and landing are stored apart, so one of them may be restored, or removed, without the other. A log that is kept
by age sends its changes again; rows of dumps would be missing. Guarantee: capture rejects a landing table that lacks a
batch with chunks that progress knows.
"""

from __future__ import annotations

from dblake.base.core.errors import ACCEPT_GAP, PositionLost
from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.progress import ProgressStore

_LANDED = "landed_chunks"


def save_landed_chunks(store: ProgressStore, batch: int) -> None:
    """Record a batch with chunks that has landed; call it before the progress of their dumps is saved."""
    store.write(_LANDED, {"batch": batch})


def forget_landed_chunks(store: ProgressStore) -> None:
    """Forget the record: all tables are dumped again."""
    store.delete(_LANDED)


def require_landed_chunks(store: ProgressStore, source: str, batch: int) -> None:
    """Raise PositionLost if landing, which ends at ``batch``, lacks a batch with chunks that has landed."""
    document = store.read(_LANDED)
    with document_errors(_LANDED, "delete the document, and dump all tables again"):
        newest = int(document["batch"]) if document else 0
    if batch < newest:
        raise PositionLost(
            f"source {source}: landing ends at batch {batch}, and rows of dumps have landed up to batch {newest}: the"
            " table was restored to an earlier state, or removed, and lacks them, a gap",
            next_step=ACCEPT_GAP,
        )
