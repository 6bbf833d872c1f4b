"""Open the warehouse's files with Arrow, wherever they lie: in the driver and on executors alike.

``DeltaTable`` and Spark take a table's path or URL as it is; code that reads or writes single Parquet files goes
through here.
"""

from __future__ import annotations

from pyarrow import fs


def filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path within it."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    found, inside = fs.FileSystem.from_uri(path)
    return found, inside


def file_path(table: str, file: str) -> str:
    """Return where a file of a table lies, given its path in the Delta log."""
    return file if "://" in file or file.startswith("/") else f"{table.rstrip('/')}/{file}"
