"""The request of an import: files with a table's rows, how to read them, and the position they were taken at.

Place: in the request that the ``dump`` command queues and capture carries out. Guarantee: values only, which survive a
JSON document unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dblake.landing.control import DumpStart

PARQUET, CSV, PG_DUMP, MYSQLDUMP = "parquet", "csv", "pg_dump", "mysqldump"
FORMATS = (PARQUET, CSV, PG_DUMP, MYSQLDUMP)


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """Files that hold all rows of a table as of a position.

    ``files`` are absolute paths or URLs, in the order of reading. ``began`` is the last position that the files
    reflect, with PostgreSQL's snapshot: no event after it, and none that the snapshot did not see, is in them.
    ``columns`` are those of files without names, None for the table's own; ``null`` is the text of NULL in CSV.
    ``schema_id`` is the table's schema when the import was queued, ``first_batch`` the landing batch from which the log
    after the position is.
    """

    format: str
    files: tuple[str, ...]
    began: DumpStart
    schema_id: str
    first_batch: int
    columns: tuple[str, ...] | None = None
    null: str = ""

    def with_log_from(self, batch: int) -> ImportSpec:
        """Return the import with ``first_batch``."""
        return replace(self, first_batch=batch)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> ImportSpec:
        """Return the value of a parsed document. Raises TypeError or KeyError for unknown or missing fields."""
        columns = document["columns"]
        return replace(
            cls(**document), files=tuple(document["files"]), began=DumpStart(**document["began"]),
            columns=None if columns is None else tuple(columns),
        )


@dataclass(frozen=True, slots=True)
class ImportFiles:
    """The options of ``dump import``: files of one format, the position they were taken at, and how to read them."""

    format: str
    files: Sequence[str]
    at: str
    snapshot: str | None = None
    columns: tuple[str, ...] | None = None
    null: str = ""
