"""What a progress document is, wherever it is kept: a path, and a JSON object as text."""

from __future__ import annotations

import json
import re
from typing import Any

from dblake.core.errors import ConfigError

SUFFIX = ".json"
_PATH = re.compile(r"[A-Za-z0-9_~][A-Za-z0-9_~.-]*(/[A-Za-z0-9_~][A-Za-z0-9_~.-]*)*\Z")

Document = dict[str, Any]


def checked(path: str) -> str:
    """The path, if it stays where documents are kept; a ValueError if not."""
    if not _PATH.match(path):
        raise ValueError(f"not a document path: {path}")
    return path


def to_text(document: Document) -> bytes:
    """The document as it is kept."""
    return json.dumps(document, ensure_ascii=False, sort_keys=True).encode()


def from_text(text: bytes, where: str) -> Document:
    """What ``to_text`` made. Raises ConfigError, which names ``where``, for anything else."""
    try:
        document = json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise _corrupt(where) from error
    if not isinstance(document, dict):
        raise _corrupt(where)
    return document


def _corrupt(where: str) -> ConfigError:
    kind = where.partition(" ")[0]
    return ConfigError(
        f"progress: the {where} is not what was written there",
        next_step=f"delete that {kind}; landing has all that is needed, only the dump it belongs to starts again",
    )
