"""Replace a file durably as a whole.

Place: below every small document that a process keeps on its own disk. Guarantee: after a crash at any moment the file
has the old or the new content, and on return the new one. Locks are left to the caller.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(file: Path, content: bytes) -> None:
    """Write a temporary file beside ``file`` and rename it to that, both durably. Raises OSError.

    The temporary file is hidden and has the suffix ``.part``: one that a crash leaves behind is no document.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{file.stem[:40]}.", suffix=".part", dir=file.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_directory(file.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
