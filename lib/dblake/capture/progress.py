"""Capture's own small documents: which dumps are wanted, how far they are, how fast they may go.

A document is a JSON object under a path such as ``dumps/requests/<id>.<table>``. Promises: a write is there whole or
not at all, also after a crash; a document that cannot be read is an error by name, never an empty one. Nothing here is
needed to know how far *landing* is: the landing table is its own checkpoint. What the documents mean is ``requests``'
business.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dblake.capture.documents import SUFFIX, Document, checked, from_text, to_text
from dblake.capture.lease import ZOOKEEPER, Lease
from dblake.core.errors import ConfigError, LandingUnavailable
from dblake.core.zookeeper_url import ZookeeperUrl


class ProgressStore(Protocol):
    """Where documents are kept. All methods may be called by several processes at once."""

    def read(self, path: str) -> Document | None:
        """The document, or None if there is none. Raises ConfigError if it cannot be understood."""

    def write(self, path: str, document: Document) -> None:
        """Puts the document there, in place of what was there; durable on return."""

    def list(self, prefix: str) -> Sequence[str]:
        """The paths of all documents below ``prefix``, however deep, sorted."""

    def delete(self, path: str) -> None:
        """Removes the document; nothing happens if there is none."""


class FileProgress:
    """Documents as files under one directory of the machine capture runs on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, path: str) -> Document | None:
        file = self._file(path)
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable("read", error) from error
        return from_text(text, f"file {file}")

    def write(self, path: str, document: Document) -> None:
        file, text = self._file(path), to_text(document)
        for again in (True, False):
            try:
                _put(file, text)
                return
            except OSError as error:
                # The folder may be taken away at any moment, and is made again.
                if not (again and isinstance(error, FileNotFoundError)):
                    raise _unusable("written", error) from error

    def list(self, prefix: str) -> Sequence[str]:
        # os.walk, which does not mind folders that go away meanwhile.
        return sorted(
            (Path(folder) / name).relative_to(self._directory).as_posix().removesuffix(SUFFIX)
            for folder, _, names in os.walk(self._directory / checked(prefix))
            for name in names
            if name.endswith(SUFFIX)
        )

    def delete(self, path: str) -> None:
        file = self._file(path)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise _unusable("written", error) from error

    def _file(self, path: str) -> Path:
        return self._directory / (checked(path) + SUFFIX)


def open_progress(url: str, source: str, lease: Lease | None = None) -> ProgressStore:
    """The documents of one source at a ``progress`` URL. Sources may share the URL, never a document.

    Capture gives its ``lease``: in ZooKeeper it then cannot write once another capture leads.
    """
    if url.startswith("file:"):
        return FileProgress(Path(url.removeprefix("file:")) / checked(source))
    if url.startswith(ZOOKEEPER):
        # Here, because files need none of it.
        from dblake.capture.zookeeper.lease import ZookeeperLease
        from dblake.capture.zookeeper.progress import ZookeeperProgress

        place = ZookeeperUrl.parse(url)
        return ZookeeperProgress(place, checked(source), lease if isinstance(lease, ZookeeperLease) else None)
    raise ConfigError(
        f"progress: no documents can be kept in {url.partition(':')[0]}",
        next_step="set `progress` to file:PATH or zookeeper://host:port/path",
    )


def _put(file: Path, text: bytes) -> None:
    descriptor, part = _part_beside(file)
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


def _part_beside(file: Path) -> tuple[int, Path]:
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


def _unusable(verb: str, error: OSError) -> LandingUnavailable | ConfigError:
    what = f"progress: the directory cannot be {verb}: {error.strerror}"
    if isinstance(error, (PermissionError, NotADirectoryError, FileExistsError)):
        return ConfigError(what, next_step="set `progress` to a directory this user may write to")
    return LandingUnavailable(what, next_step="see to the disk it is on; then run again")
