"""A folder that a demonstration makes again at each start: the quickstart's, and the one of ``up --demo``."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dblake.base.core.errors import ConfigError


@contextmanager
def fresh_folder(folder: Path, marker: str) -> Iterator[Path]:
    """Hold a folder, empty but for the file ``marker``, for this process alone within the block.

    Raises ConfigError for a folder with files but without the marker, and while another process holds it.
    """
    mark = folder / marker
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise ConfigError(
            f"{folder} holds files that this command did not create",
            next_step="move them, or start in another folder",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marked = mark.open("ab")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror}", next_step="start in a writable folder"
        ) from error
    with marked:
        try:
            fcntl.flock(marked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"{folder} is used by a running process", next_step="stop it, or start in another folder"
            ) from error
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != mark:
                entry.unlink()
        yield folder
