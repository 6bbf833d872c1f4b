"""The record of a rejected start: a log that is another one than landing has stays rejected until the gap is accepted.

A scheduler starts capture again every few minutes, while the server goes on. So what was rejected once is not left to
be proved again. A rejection concerns the server that was rejected, and the incarnation in landing: it ends with the
next one, which ``--accept-gap`` starts, and does not concern the right server if a wrong one was rejected.
"""

from __future__ import annotations

from dblake.base.core.errors import ACCEPT_GAP, DivergedServer, LogWentBack
from dblake.base.core.source import ServerIdentity
from dblake.ingest.capture.documents import document_errors
from dblake.ingest.capture.progress import ProgressStore

_REJECTION = "rejection"
_KINDS = {"log": LogWentBack, "server": DivergedServer}


def save_rejection(
    store: ProgressStore, error: LogWentBack | DivergedServer, server: ServerIdentity, incarnation: int
) -> None:
    """Record why a server's log cannot continue an incarnation."""
    kind = "server" if isinstance(error, DivergedServer) else "log"
    store.write(_REJECTION, {
        "reason": error.what, "kind": kind, "server": server.server, "log": server.log, "incarnation": incarnation,
    })


def require_no_rejection(store: ProgressStore, server: ServerIdentity, incarnation: int) -> None:
    """Raise the recorded error if this server was rejected for this incarnation; delete a record that has ended."""
    document = store.read(_REJECTION)
    if document is None:
        return
    with document_errors(_REJECTION, ACCEPT_GAP):
        reason, recorded = document["reason"], document["incarnation"]
        rejected, kind = ServerIdentity(document["server"], document["log"]), _KINDS[document.get("kind", "log")]
    if recorded != incarnation:
        store.delete(_REJECTION)
    elif rejected.same_as(server):
        raise kind(reason, next_step=ACCEPT_GAP)
