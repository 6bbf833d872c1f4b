"""The record of a rejected start: a log that is another one than landing has stays rejected until the gap is accepted.

A scheduler starts capture again every few minutes, while the server goes on. So what was rejected once is not left to
be proved again. A rejection concerns the server that was rejected, and the incarnation in landing: it ends with the
next one, which ``--accept-gap`` starts, and does not concern the right server if a wrong one was rejected.
"""

from __future__ import annotations

from dblake.base.core.errors import ACCEPT_GAP, LogWentBack
from dblake.base.core.source import ServerIdentity
from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.progress import ProgressStore

_REJECTION = "rejection"


def save_rejection(store: ProgressStore, error: LogWentBack, server: ServerIdentity, incarnation: int) -> None:
    """Record why a server's log cannot continue an incarnation."""
    document = {"reason": error.what, "server": server.server, "log": server.log, "incarnation": incarnation}
    store.write(_REJECTION, document)


def require_no_rejection(store: ProgressStore, server: ServerIdentity, incarnation: int) -> None:
    """Raise LogWentBack if this server's log was rejected for this incarnation; delete a record that has ended."""
    document = store.read(_REJECTION)
    if document is None:
        return
    with document_errors(_REJECTION, ACCEPT_GAP):
        reason, recorded = document["reason"], document["incarnation"]
        rejected = ServerIdentity(document["server"], document["log"])
    if recorded != incarnation:
        store.delete(_REJECTION)
    elif rejected.same_as(server):
        raise LogWentBack(reason, next_step=ACCEPT_GAP)
