"""Small documents beside a checkpoint: what ``status`` reads of a consumer without taking its checkpoint.

Place: beside ``checkpoints``, at the same URLs. Guarantee: a document is replaced as a whole. Reading and writing take
no lease and no lock: who may write is left to the caller, and so is what a document means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dblake.base.core.durable_file import replace_file
from dblake.base.core.errors import ProgressUnavailable
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.serve.consume.checkpoints import FILE

CHECKPOINT, STATUS = "checkpoint", "status"
"""Names of documents; those of a group's partition follow ``partitions/N/``."""


class Documents(Protocol):
    """The documents beside one checkpoint, by name. All methods may raise ProgressUnavailable."""

    def read(self, name: str) -> str | None:
        """Return a document; None if there is none."""

    def write(self, name: str, text: str) -> None:
        """Replace a document, or create it."""

    def close(self) -> None:
        """Release the connection to the store."""


def open_documents(url: str) -> Documents:
    """Return the documents beside the checkpoint at ``url``, as ``checkpoints.checkpoint_url`` returns it."""
    if url.startswith(FILE):
        return FileDocuments(Path(url.removeprefix(FILE)))
    # Imported here, because local checkpoints do not need ZooKeeper's client.
    from dblake.serve.consume.zookeeper.documents import ZookeeperDocuments

    return ZookeeperDocuments(ZookeeperUrl.parse(url))


def partition_document(partition: int, name: str) -> str:
    """Return the name of a document of one partition of a group."""
    return f"partitions/{partition}/{name}"


class FileDocuments:
    """Documents beside a checkpoint file: ``bus.status.json`` beside ``bus.json``."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def read(self, name: str) -> str | None:
        """Return a document; see Documents."""
        file = self._file(name)
        try:
            return file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unusable(file, "read", error) from error

    def write(self, name: str, text: str) -> None:
        """Replace a document; see Documents."""
        file = self._file(name)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, text.encode())
        except OSError as error:
            raise _unusable(file, "written", error) from error

    def close(self) -> None:
        """Do nothing: files are not kept open."""

    def _file(self, name: str) -> Path:
        one = self._checkpoint
        return one if name == CHECKPOINT else one.with_name(f"{one.stem}.{name.replace('/', '.')}.json")


def _unusable(file: Path, what: str, error: OSError) -> ProgressUnavailable:
    return ProgressUnavailable(
        f"progress: file {file} cannot be {what}: {error.strerror}", next_step="check its folder, then run this again"
    )
