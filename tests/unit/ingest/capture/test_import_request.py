"""Options of an import that do not fit are rejected before any file or table is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.errors import PointOutOfRange, UsageError
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.import_request import ImportQueue
from dblake.ingest.imports.spec import ImportFiles

T = TableSchema("public.t", (Column("id", "integer", False, 1),))


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("postgres", {"format": "mysqldump"}, UsageError, "does not fit a source of type postgres"),
        ("mariadb", {"format": "pg_dump"}, UsageError, "does not fit a source of type mariadb"),
        ("postgres", {"format": "csv", "columns": ("id",)}, UsageError, "omit --columns"),
        ("postgres", {"format": "parquet", "columns": ("id",)}, UsageError, "omit --columns"),
        ("postgres", {"format": "pg_dump"}, PointOutOfRange, "capture has landed no log"),
    ],
)
def test_options_that_do_not_fit_are_rejected(
    tmp_path: Path, source: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    queue = ImportQueue(source, str(tmp_path / "landing"), FileProgress(tmp_path / "progress"))
    files = ImportFiles(**{"files": ["f"], "at": "0/1", "snapshot": "1:1:", **options})
    with pytest.raises(error, match=message):
        queue.add(files, T, is_masked=False, replaces=False)
