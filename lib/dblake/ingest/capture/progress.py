"""The progress store: capture's own small documents, such as dump requests, dump progress and the throttle.

A document is a JSON object under a path such as ``dumps/requests/<id>.<table>``. Guarantees: a write is stored whole or
not at all, also after a crash; a document that cannot be parsed is an error by name, never an empty one. The position
that *landing* has reached is not stored here: the landing table is its own checkpoint. What documents mean is left to
``dump_queue``, ``throttle`` and ``stale_tables``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dblake.base.core.errors import ConfigError
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.ingest.capture.documents import Document, check_path
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.lease import ZOOKEEPER, Lease


class ProgressStore(Protocol):
    """A store of documents. Several processes may call all methods at once.

    Every method raises ProgressUnavailable if the store fails for a reason that may pass.
    """

    def read(self, path: str) -> Document | None:
        """Return the document, or None if there is none. Raises ConfigError if it cannot be parsed."""

    def write(self, path: str, document: Document) -> None:
        """Write the document, replacing an earlier one; durable on return."""

    def list(self, prefix: str) -> Sequence[str]:
        """Return the sorted paths of all documents below ``prefix``, at any depth."""

    def delete(self, path: str) -> None:
        """Delete the document, if it exists."""


def open_progress(url: str, source: str, lease: Lease | None = None) -> ProgressStore:
    """Return the documents of one source at a ``progress`` URL. Sources may share the URL, never a document.

    Capture passes its ``lease``: in ZooKeeper it then cannot write after another capture has become the leader.
    Raises ConfigError for an unknown scheme.
    """
    if url.startswith("file:"):
        return FileProgress(Path(url.removeprefix("file:")) / check_path(source))
    if url.startswith(ZOOKEEPER):
        # Imported here, because jobs with local progress do not need ZooKeeper's client.
        from dblake.ingest.capture.zookeeper.lease import ZookeeperLease
        from dblake.ingest.capture.zookeeper.progress import ZookeeperProgress

        server = ZookeeperUrl.parse(url)
        return ZookeeperProgress(server, check_path(source), lease if isinstance(lease, ZookeeperLease) else None)
    raise ConfigError(
        f"progress: the scheme {url.partition(':')[0]} is not supported",
        next_step="set `progress` to file:PATH or zookeeper://host:port/path",
    )
