"""The one table whose rows the log's reader reads itself: ``watermark(id int primary key, value varchar(36))``."""

from __future__ import annotations

from collections.abc import Iterator

from dblake.core.errors import PrerequisitesNotMet
from dblake.source.mysql.events import BODY, packed

_Image = dict[int, bytes | None]


def updates(event: bytes) -> Iterator[tuple[int, str]]:
    """The rows as an update left them: reader and value; a value made NULL by hand is empty."""
    at = BODY + 8
    if event[4] >= 30:
        at += int.from_bytes(event[at : at + 2], "little")
    width, at = packed(event, at)
    if width != 2:
        raise PrerequisitesNotMet(
            "the watermark table has other columns than id and value", next_step="drop it and run preflight --init"
        )
    before_has, after_has = event[at], event[at + 1]
    at += 2
    while at < len(event):
        before, at = _image(event, at, before_has)
        after, at = _image(event, at, after_has)
        # A session may have asked for images without what did not change.
        row = {**before, **after}
        yield int.from_bytes(row[0] or b"", "little", signed=True), (row[1] or b"").decode("utf-8", "replace")


def _image(event: bytes, at: int, has: int) -> tuple[_Image, int]:
    columns = [n for n in range(2) if has >> n & 1]
    nulls, at = event[at], at + 1
    found: _Image = {}
    for bit, column in enumerate(columns):
        if nulls >> bit & 1:
            found[column] = None
            continue
        # 36 characters are under 256 bytes in any character set, so one byte says how many.
        size, at = (4, at) if column == 0 else (event[at], at + 1)
        found[column] = event[at : at + size]
        at += size
    return found, at
