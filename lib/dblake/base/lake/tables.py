"""Open and create Delta tables of the lake, wherever they lie: the one module that gives delta-rs its storage options.

``path`` is a path or URL from ``layout.Paths``. Who may commit when is ``locks``'; what tables hold, their packages'.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import TableNotFoundError

from dblake.base.core.errors import StorageDenied
from dblake.base.lake.storage import is_local, is_s3, storage_of

_CHECKPOINT_COMMITS_ON_S3 = 10
"""Opening a table reads each commit since the newest checkpoint twice, one request each."""

__all__ = [
    "DeltaTable", "add_missing_columns", "create_table", "find_table", "has_table", "list_files", "maps_columns",
    "open_table", "storage_options",
]


def storage_options(path: str) -> dict[str, str] | None:
    """Return delta-rs's options for a location, credentials included; None on a local disk."""
    storage = storage_of(path)
    return storage.delta_options() if storage else None


def open_table(path: str, version: int | None = None) -> DeltaTable:
    """Open a table at its newest version, or at ``version``. Raises TableNotFoundError without a table."""
    return DeltaTable(path, version=version, storage_options=storage_options(path))


def find_table(path: str) -> DeltaTable | None:
    """Open a table; None if there is none. It costs no more requests than ``open_table``."""
    try:
        return open_table(path)
    except TableNotFoundError:
        return None


def has_table(path: str) -> bool:
    """Return True if there is a table; to open it next, ``find_table`` saves a request."""
    return DeltaTable.is_deltatable(path, storage_options=storage_options(path))


def maps_columns(table: DeltaTable) -> bool:
    """Return True if a table has odd column names, which Delta maps to others: delta-rs can open it, but not more."""
    return table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"


def list_files(table: DeltaTable) -> pa.Table:
    """Return a table's files as its log has them: path, size_bytes, num_records, min.*, max.* and null_count.*."""
    return pa.table(table.get_add_actions(flatten=True))


def table_bytes(table: DeltaTable) -> int:
    """Return the size of a table's files in bytes."""
    return sum(list_files(table)["size_bytes"].to_pylist())


def create_table(path: str, schema: Schema | pa.Schema, configuration: Mapping[str, str | None] | None = None) -> None:
    """Create a table, unless there is one. Keys of ``configuration`` may be ours.

    On object storage the answer may be lost after the table was created: it counts as created. Raises StorageDenied if
    its local folder cannot exist.
    """
    settings = dict(configuration or {})
    if is_local(path):
        _create_folder(path.removeprefix("file://"))
    if is_s3(path):
        settings["delta.checkpointInterval"] = str(_CHECKPOINT_COMMITS_ON_S3)
    try:
        DeltaTable.create(
            path, schema, mode="ignore", configuration=settings, raise_if_key_not_exists=False,
            storage_options=storage_options(path),
        )
    except OSError:
        if is_local(path) or not has_table(path):
            raise


def add_missing_columns(path: str, schema: pa.Schema) -> None:
    """Give a table that an earlier version created the columns of ``schema`` that it lacks."""
    table = open_table(path)
    known = {field.name for field in table.schema().fields}
    if missing := [Field.from_arrow(field) for field in schema if field.name not in known]:
        table.alter.add_columns(missing)


def _create_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        raise StorageDenied(
            f"the folder {path} cannot be created: {str(error.strerror).lower()}",
            next_step="set `warehouse` to a path or URL that this user may write to",
        ) from error
