"""Write files of a state table again as state itself writes them: no tombstones among other rows.

Place: before an Iceberg snapshot, which leaves out whole files. Files of an earlier version, and those that Spark's
OPTIMIZE merged, have both. Guarantee: the table has the same rows before and after; readers of its changes see none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dblake.base.lake.log import replace_files
from dblake.transform.spark.conflicts import retry_on_conflict
from dblake.transform.state.file_writer import FileWriter
from dblake.transform.state.files import TableFiles
from dblake.transform.state.upsert import copy_rows


@dataclass(frozen=True, slots=True)
class _Written:
    path: str
    size: int
    statistics: str


@retry_on_conflict
def separate_tombstones(path: str, names: Collection[str]) -> None:
    """Write files again in one commit, as far as the table still has them."""
    target = TableFiles(path)
    mixed = [file for file in target.files() if file.path in names]
    if not mixed:
        return
    writer = FileWriter(path, target.columns)
    copy_rows(path, target.columns, mixed, writer)
    written = [_Written(add.path, add.size, add.stats) for add in writer.close()]
    replace_files(path, target.table, {file.path: file.size for file in mixed}, written)
