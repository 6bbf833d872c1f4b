"""The progress store: capture's own small documents, such as dump requests, dump progress and the throttle.

A document is a JSON object under a path such as ``dumps/requests/<id>.<table>``. Guarantees: a write is stored whole or
not at all, also after a crash; a document that cannot be parsed is an error by name, never an empty one. The position
that *landing* has reached is not stored here: the landing table is its own checkpoint. What documents mean is left to
``dump_queue``, ``throttle`` and ``stale_tables``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dblake.capture.documents import SUFFIX, Document, check_path, from_text, to_text
from dblake.capture.lease import ZOOKEEPER, Lease
from dblake.core.errors import ConfigError, ProgressUnavailable
from dblake.core.zookeeper_url import ZookeeperUrl


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


class FileProgress:
    """Documents as files under one directory of the machine that capture runs on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, path: str) -> Document | None:
        """Return the document; see ProgressStore."""
        file = self._file(path)
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable("read", error) from error
        return from_text(text, f"file {file}")

    def write(self, path: str, document: Document) -> None:
        """Write the document; see ProgressStore."""
        file, text = self._file(path), to_text(document)
        for is_first_try in (True, False):
            try:
                _replace_file(file, text)
                return
            except OSError as error:
                # The folder may be deleted at any moment; the second try recreates it.
                if not (is_first_try and isinstance(error, FileNotFoundError)):
                    raise _unusable("written", error) from error

    def list(self, prefix: str) -> Sequence[str]:
        """Return the paths; see ProgressStore."""
        # os.walk ignores folders that are deleted while it runs.
        return sorted(
            (Path(folder) / name).relative_to(self._directory).as_posix().removesuffix(SUFFIX)
            for folder, _, names in os.walk(self._directory / check_path(prefix))
            for name in names
            if name.endswith(SUFFIX)
        )

    def delete(self, path: str) -> None:
        """Delete the document; see ProgressStore."""
        file = self._file(path)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable("written", error) from error

    def _file(self, path: str) -> Path:
        return self._directory / (check_path(path) + SUFFIX)


def open_progress(url: str, source: str, lease: Lease | None = None) -> ProgressStore:
    """Return the documents of one source at a ``progress`` URL. Sources may share the URL, never a document.

    Capture passes its ``lease``: in ZooKeeper it then cannot write after another capture has become the leader.
    Raises ConfigError for an unknown scheme.
    """
    if url.startswith("file:"):
        return FileProgress(Path(url.removeprefix("file:")) / check_path(source))
    if url.startswith(ZOOKEEPER):
        # Imported here, because jobs with local progress do not need ZooKeeper's client.
        from dblake.capture.zookeeper.lease import ZookeeperLease
        from dblake.capture.zookeeper.progress import ZookeeperProgress

        server = ZookeeperUrl.parse(url)
        return ZookeeperProgress(server, check_path(source), lease if isinstance(lease, ZookeeperLease) else None)
    raise ConfigError(
        f"progress: the scheme {url.partition(':')[0]} is not supported",
        next_step="set `progress` to file:PATH or zookeeper://host:port/path",
    )


def _replace_file(file: Path, text: bytes) -> None:
    """Write ``text`` to a temporary file and rename it to ``file``, both durably."""
    descriptor, part = _temporary_file(file)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_directory(file.parent)


def _temporary_file(file: Path) -> tuple[int, Path]:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Hidden, and without the suffix: a part left by a crash is no document.
    descriptor, name = tempfile.mkstemp(prefix=f".{file.stem[:40]}.", suffix=".part", dir=file.parent)
    return descriptor, Path(name)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(verb: str, error: OSError) -> ProgressUnavailable | ConfigError:
    what = f"progress: the directory cannot be {verb}: {error.strerror}"
    if isinstance(error, (PermissionError, NotADirectoryError, FileExistsError)):
        return ConfigError(what, next_step="set `progress` to a directory this user may write to")
    return ProgressUnavailable(what, next_step="check the disk that holds it; then run this again")
