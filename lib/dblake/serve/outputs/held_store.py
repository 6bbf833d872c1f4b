"""A checkpoint store that a run holds from before its output is opened until after it is closed.

Place: between ``delivery``, which enters it first, and the subscription, which uses it. Guarantee: an output has
effects only while its process holds the checkpoint; this includes opening and closing the output.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from dblake.serve.consume.checkpoints import CheckpointStore


class HeldStore:
    """A CheckpointStore that opens and closes with the ``with`` block around its users."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._checkpoint: str | None = None
        self.where = store.where

    def __enter__(self) -> Self:
        """Take the store. Raises Fenced if another process holds it."""
        self._checkpoint = self._store.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def open(self) -> str | None:
        """Return the stored checkpoint; see CheckpointStore."""
        return self._checkpoint

    def save(self, checkpoint: str) -> None:
        """Replace the checkpoint; see CheckpointStore."""
        self._store.save(checkpoint)

    def is_held(self) -> bool:
        """Return whether the store is this process's; see CheckpointStore."""
        return self._store.is_held()

    def close(self) -> None:
        """Do nothing: the ``with`` block releases the store."""
