"""Open the lake's files with Arrow, wherever they lie: in the driver and on executors alike.

``tables`` opens Delta tables, and Spark takes a table's path or URL as it is; code that reads or writes single files
goes through here.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

from dblake.base.lake.storage import is_local, join, on_storage_of, storage_of


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path within it."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    storage = storage_of(path)
    if storage:
        return storage.arrow_filesystem(), path.partition("://")[2]
    found, inside = fs.FileSystem.from_uri(path)
    return found, inside


def file_path(table: str, file: str) -> str:
    """Return where a file of a table lies, given its path in the Delta log."""
    return on_storage_of(table, file) if "://" in file or file.startswith("/") else join(table, file)


def file_url(table: str, file: str) -> str:
    """Return where a file of a table lies, as a URL also on a local disk."""
    found = file_path(table, file)
    return str(found) if "://" in found else f"file://{found}"


def group_bounds(facts: pq.RowGroupMetaData, names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the least and the greatest value of some columns in a row group; one without statistics is left out."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for number in range(facts.num_columns):
        column = facts.column(number)
        if column.path_in_schema in names:
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max:
                low[column.path_in_schema], high[column.path_in_schema] = statistics.min, statistics.max
    return low, high


def replace_folder(built: Path, target: str) -> None:
    """Replace the files in a folder of the lake by those in a local one, without a rename.

    ``index.html`` is written last and what it no longer refers to is deleted afterwards, so a reader always finds a
    first page whose links lead somewhere.
    """
    system, base = filesystem(target)
    names = sorted(
        (file.relative_to(built).as_posix() for file in built.rglob("*") if file.is_file()),
        key=lambda name: (name == "index.html", name),
    )
    for name in names:
        path = f"{base}/{name}"
        if is_local(target):
            system.create_dir(path.rpartition("/")[0], recursive=True)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        with system.open_output_stream(path, metadata={"Content-Type": kind}) as out:
            out.write((built / name).read_bytes())
    for found in system.get_file_info(fs.FileSelector(base, recursive=True)):
        if found.is_file and found.path.removeprefix(f"{base}/") not in names:
            system.delete_file(found.path)
