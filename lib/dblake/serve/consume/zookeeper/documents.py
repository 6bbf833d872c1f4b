"""Documents beside a checkpoint in ZooKeeper.

Place: behind ``consume.documents.open_documents``. Guarantee: a document is a node of its own, replaced as a whole,
whatever its version. A request is not retried, so a caller waits for one session's time-out at most.
"""

from __future__ import annotations

from kazoo.exceptions import NodeExistsError, NoNodeError

from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.base.zookeeper.session import Session


class ZookeeperDocuments:
    """Nodes below the checkpoint's root; see Documents."""

    def __init__(self, server: ZookeeperUrl) -> None:
        self._session, self._root = Session(server), server.root

    def read(self, name: str) -> str | None:
        """Return a document; see Documents."""
        try:
            text, _ = self._session.request(lambda client: client.get_async(self._node(name)), once=True)
        except NoNodeError:
            return None
        return str(text.decode()) or None

    def write(self, name: str, text: str) -> None:
        """Replace a document; see Documents."""
        node, content = self._node(name), text.encode()
        while True:
            try:
                self._session.request(lambda client: client.set_async(node, content), once=True)
                return
            except NoNodeError:
                pass
            try:
                self._session.request(lambda client: client.create_async(node, content, makepath=True), once=True)
                return
            except NodeExistsError:
                continue

    def close(self) -> None:
        """Close the ZooKeeper session."""
        self._session.close()

    def _node(self, name: str) -> str:
        return f"{self._root}/{name}"
