"""Progress documents, wherever they are stored: a path, and a JSON object as UTF-8 text.

Guarantee: a path stays below the store's root, and text that is not a JSON object, or whose fields another version
wrote, is a ConfigError that names the document. What documents mean is left to their modules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dblake.base.core.errors import ConfigError

SUFFIX = ".json"
_PATH = re.compile(r"[A-Za-z0-9_~][A-Za-z0-9_~.-]*(/[A-Za-z0-9_~][A-Za-z0-9_~.-]*)*\Z")

Document = dict[str, Any]


def check_path(path: str) -> str:
    """Return ``path`` if it stays below the store's root. Raises ValueError if not."""
    if not _PATH.match(path):
        raise ValueError(f"not a document path: {path}")
    return path


def to_text(document: Document) -> bytes:
    """Return the document as stored: JSON with sorted keys."""
    return json.dumps(document, ensure_ascii=False, sort_keys=True).encode()


def from_text(text: bytes, where: str) -> Document:
    """Parse the text of ``to_text``. Raises ConfigError, which names ``where`` (its kind first), for anything else."""
    try:
        document = json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise _corrupt(where) from error
    if not isinstance(document, dict):
        raise _corrupt(where)
    return document


@contextmanager
def document_errors(path: str, next_step: str) -> Iterator[None]:
    """Turn the errors of reading a document's fields into a ConfigError that names the document."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"progress: the document {path} was written by an incompatible version, or edited", next_step=next_step
        ) from error


def _corrupt(where: str) -> ConfigError:
    kind = where.partition(" ")[0]
    return ConfigError(
        f"progress: the {where} is corrupt: not a JSON object",
        next_step=f"delete that {kind}; no landed row is lost, only the dump it belongs to starts over",
    )
