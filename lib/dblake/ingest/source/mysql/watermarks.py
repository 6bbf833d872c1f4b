"""Rows of the watermark table in the log, ``watermark(id int primary key, value varchar(36))``.

The only rows that capture decodes itself: they open and close chunk windows (DBLog, section 3.2). All others land
undecoded.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblake.base.core.errors import PrerequisitesNotMet
from dblake.ingest.source.mysql.events import BODY
from dblake.ingest.source.mysql.length_encoded import read_packed
from dblake.payloads.formats.binlog import FIRST_ROWS_V2, ROWS_HEADER_BYTES

WATERMARK_TABLE = "watermark"

_Image = dict[int, bytes | None]


def read_updates(event: bytes) -> Iterator[tuple[int, str]]:
    """Yield the rows after an update event: reader and value; a value that was set to NULL by hand is empty.

    Raises PrerequisitesNotMet if the table has other columns.
    """
    at = BODY + ROWS_HEADER_BYTES
    if event[4] >= FIRST_ROWS_V2:
        at += int.from_bytes(event[at : at + 2], "little")
    width, at = read_packed(event, at)
    if width != 2:
        raise PrerequisitesNotMet(
            "the watermark table has other columns than id and value", next_step="drop it and run preflight --init"
        )
    before_columns, after_columns = event[at], event[at + 1]
    at += 2
    while at < len(event):
        before, at = _read_image(event, at, before_columns)
        after, at = _read_image(event, at, after_columns)
        # A session may log images without unchanged columns.
        row = {**before, **after}
        yield int.from_bytes(row[0] or b"", "little", signed=True), (row[1] or b"").decode("utf-8", "replace")


def _read_image(event: bytes, at: int, present: int) -> tuple[_Image, int]:
    columns = [n for n in range(2) if present >> n & 1]
    nulls, at = event[at], at + 1
    image: _Image = {}
    for bit, column in enumerate(columns):
        if nulls >> bit & 1:
            image[column] = None
            continue
        # 36 characters are under 256 bytes in any character set, so the length is one byte.
        size, at = (4, at) if column == 0 else (event[at], at + 1)
        image[column] = event[at : at + size]
        at += size
    return image, at
