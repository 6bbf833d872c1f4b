"""Progress documents as files under one directory, for captures on one machine.

Place: behind ``progress.open_progress``, the twin of ``zookeeper.progress``. Guarantee: a document is replaced whole
and durably; what a crash leaves behind is no document.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dblake.base.core.durable_file import replace_file
from dblake.base.core.errors import ConfigError, ProgressUnavailable
from dblake.ingest.capture.documents import SUFFIX, Document, check_path, from_text, to_text


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
                file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(file, text)
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


def _unusable(verb: str, error: OSError) -> ProgressUnavailable | ConfigError:
    what = f"progress: the directory cannot be {verb}: {error.strerror}"
    if isinstance(error, (PermissionError, NotADirectoryError, FileExistsError)):
        return ConfigError(what, next_step="set `progress` to a directory this user may write to")
    return ProgressUnavailable(what, next_step="check the disk that holds it; then run this again")
