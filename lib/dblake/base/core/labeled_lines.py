"""Lines of a process in one stream with those of others, each with the process's name.

Place: below ``supervised_process``. Guarantee: a line that is a JSON object stays one, with the name as a member.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import IO


def copy_lines(stream: IO[bytes], write_line: Callable[[str], None], name: str, prefix: str) -> None:
    """Write each line of a stream, labeled, until the stream ends; close it."""
    with stream:
        for raw in stream:
            write_line(label_line(raw.decode(errors="replace").rstrip(), name, prefix))


def label_line(line: str, name: str, prefix: str) -> str:
    """Return a part's line with its name: as the member ``part`` of a JSON object, otherwise as a prefix."""
    if line.startswith("{") and line.endswith("}"):
        with suppress(ValueError):
            return json.dumps({"part": name, **json.loads(line)}, ensure_ascii=False)
    return prefix + line
