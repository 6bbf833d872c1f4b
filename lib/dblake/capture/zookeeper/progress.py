"""Progress documents as ZooKeeper nodes, for captures on several machines.

``<root>/<source>/documents/dumps/throttle.json`` is the document ``dumps/throttle``. Promises what ``ProgressStore``
does; besides, a capture that no longer holds the lease cannot write: the check is part of the write. Documents are
found by looking, so no watch is ever needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from dblake.capture.documents import SUFFIX, Document, checked, from_text, to_text
from dblake.capture.zookeeper.session import Session, explained
from dblake.core.errors import ConfigError, Fenced
from dblake.core.zookeeper_url import ZookeeperUrl

if TYPE_CHECKING:
    from dblake.capture.zookeeper.lease import ZookeeperLease

MOST_BYTES = 1_000_000
"""Servers refuse requests of more than 1 MiB unless told otherwise, by dropping the connection without a word."""


class ZookeeperProgress:
    """The documents of one source. With a ``lease``, writing needs it to be held."""

    def __init__(self, place: ZookeeperUrl, source: str, lease: ZookeeperLease | None = None) -> None:
        self._top = f"{place.root}/{source}/documents"
        self._place = place
        self._session = Session(place)
        self._lease = lease

    def read(self, path: str) -> Document | None:
        node = self._node(path)
        try:
            text, _ = self._session.ask(lambda client: client.get_async(node))
        except NoNodeError:
            return None
        return from_text(text, f"node {node}")

    def write(self, path: str, document: Document) -> None:
        node, text = self._node(path), to_text(document)
        if len(text) > MOST_BYTES:
            raise ConfigError(
                f"progress: the document {path} has {len(text):,} bytes, more than the {MOST_BYTES:,} that fit into"
                " ZooKeeper",
                next_step="ask for fewer keys in one dump",
            )
        parent = node.rpartition("/")[0]
        while True:
            try:
                self._change("set_data", node, text)
                return
            except NoNodeError:
                pass
            try:
                self._session.ask(lambda client: client.ensure_path_async(parent))
                self._change("create", node, text)
                return
            except NodeExistsError:
                continue  # by another process, or by our own request whose answer was lost
            except NoNodeError:
                continue  # somebody is removing the folder

    def list(self, prefix: str) -> Sequence[str]:
        found: list[str] = []
        folders = [checked(prefix)]
        while folders:
            folder = folders.pop()
            for name in self._children(folder):
                (found if name.endswith(SUFFIX) else folders).append(f"{folder}/{name}")
        return sorted(path.removesuffix(SUFFIX) for path in found)

    def delete(self, path: str) -> None:
        node = self._node(path)
        try:
            self._change("delete", node)
        except NoNodeError:
            return

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def _children(self, folder: str) -> Sequence[str]:
        try:
            names: Sequence[str] = self._session.ask(lambda client: client.get_children_async(f"{self._top}/{folder}"))
        except NoNodeError:
            return []
        return names

    def _node(self, path: str) -> str:
        return f"{self._top}/{checked(path)}{SUFFIX}"

    def _change(self, verb: str, node: str, *text: bytes) -> None:
        """One change, and with it the check that the lease is held."""
        lease = self._lease

        def change(client: Any) -> Any:
            transaction = client.transaction()
            if lease is not None:
                transaction.check(lease.node, 0)
            getattr(transaction, verb)(node, *text)
            return transaction.commit_async()

        results = self._session.ask(change)
        if lease is not None:
            if isinstance(results[0], NoNodeError):
                raise Fenced(
                    "progress: not written, for the lease was lost",
                    next_step="another capture takes over; this one may be started again",
                )
            results = results[1:]
        if isinstance(results[0], Exception):
            with explained(self._place):
                raise results[0]
