"""Progress documents as ZooKeeper nodes, for captures on several machines.

``<root>/<source>/documents/dumps/throttle.json`` is the document ``dumps/throttle``. Guarantees those of
``ProgressStore``; in addition a capture that no longer holds the lease cannot write: the check is part of the write.
Readers poll, so no watch is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from dblake.base.core.errors import ConfigError, Fenced
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.base.zookeeper.session import Session, mapped_errors
from dblake.ingest.capture.documents import SUFFIX, Document, check_path, from_text, to_text

if TYPE_CHECKING:
    from dblake.ingest.capture.zookeeper.lease import ZookeeperLease

MAX_DOCUMENT_BYTES = 1_000_000
"""By default servers close the connection, without an error, at a request of more than 1 MiB (jute.maxbuffer)."""


class ZookeeperProgress:
    """The documents of one source. With a ``lease``, writing requires that it is held."""

    def __init__(self, server: ZookeeperUrl, source: str, lease: ZookeeperLease | None = None) -> None:
        self._root = f"{server.root}/{source}/documents"
        self._server = server
        self._session = Session(server)
        self._lease = lease

    def read(self, path: str) -> Document | None:
        """Return the document; see ProgressStore."""
        node = self._node(path)
        try:
            text, _ = self._session.request(lambda client: client.get_async(node))
        except NoNodeError:
            return None
        return from_text(text, f"node {node}")

    def write(self, path: str, document: Document) -> None:
        """Write the document; see ProgressStore. Raises ConfigError if it is too large, Fenced without the lease."""
        node, text = self._node(path), to_text(document)
        if len(text) > MAX_DOCUMENT_BYTES:
            raise ConfigError(
                f"progress: the document {path} has {len(text):,} bytes, more than the {MAX_DOCUMENT_BYTES:,} that fit"
                " into ZooKeeper",
                next_step="request fewer keys in one dump",
            )
        parent = node.rpartition("/")[0]
        while True:
            try:
                self._change("set_data", node, text)
                return
            except NoNodeError:
                pass
            try:
                self._session.request(lambda client: client.ensure_path_async(parent))
                self._change("create", node, text)
                return
            except NodeExistsError:
                continue  # created by another process, or by our own request whose response was lost
            except NoNodeError:
                continue  # the folder is being deleted

    def list(self, prefix: str) -> Sequence[str]:
        """Return the paths; see ProgressStore."""
        documents: list[str] = []
        folders = [check_path(prefix)]
        while folders:
            folder = folders.pop()
            for name in self._children(folder):
                (documents if name.endswith(SUFFIX) else folders).append(f"{folder}/{name}")
        return sorted(path.removesuffix(SUFFIX) for path in documents)

    def delete(self, path: str) -> None:
        """Delete the document; see ProgressStore. Raises Fenced without the lease."""
        node = self._node(path)
        try:
            self._change("delete", node)
        except NoNodeError:
            return

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _children(self, folder: str) -> Sequence[str]:
        try:
            names: Sequence[str] = self._session.request(
                lambda client: client.get_children_async(f"{self._root}/{folder}")
            )
        except NoNodeError:
            return []
        return names

    def _node(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}{SUFFIX}"

    def _change(self, operation: str, node: str, *text: bytes) -> None:
        """Apply one operation in a transaction that checks that the lease's node exists."""
        lease = self._lease

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            if lease is not None:
                transaction.check(lease.node, 0)
            getattr(transaction, operation)(node, *text)
            return transaction.commit_async()

        results = self._session.request(commit)
        if lease is not None:
            if isinstance(results[0], NoNodeError):
                raise Fenced(
                    "progress: not written, because the lease was lost",
                    next_step="another capture takes over; start this one again if it is to stand by",
                )
            results = results[1:]
        if isinstance(results[0], Exception):
            with mapped_errors(self._server):
                raise results[0]
