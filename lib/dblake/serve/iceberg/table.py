"""One Delta table → its Iceberg table, in one commit of the catalog.

A snapshot is what a version of the Delta table holds: the difference between the files of both is committed, and the
snapshot's summary names the version. So publishing twice changes nothing, an answer that was lost is found in the
catalog, and an older version never follows a newer one. A commit that lost to another one is decided again, from both
tables as they are then. Guarantee: a snapshot names files of rows only, and none that ``maintain`` may have removed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, _OverwriteFiles

from dblake.base.core.errors import ConfigError, TableUnavailable
from dblake.base.core.failpoints import failpoint
from dblake.base.lake.files import file_url
from dblake.base.lake.tables import list_files, open_table
from dblake.serve.iceberg.data_files import Content, FileFooter, data_file, read_footer
from dblake.serve.iceberg.schema import (
    PublishedColumn,
    evolve,
    field_numbers,
    has_columns,
    has_lost_fields,
    name_mapping,
    published_columns,
    stored_deleted,
)
from dblake.transform.state.files import TOMBSTONES
from dblake.transform.state.separate import separate_tombstones

BATCH, VERSION, DELTA_TABLE, READ_AT = "dblake.batch", "dblake.version", "dblake.table", "dblake.read-at"
"""Of a snapshot's summary: landing batch, Delta version, identifier of the Delta table, and when it was read, in ms."""
_PATH = "dblake.path"
"""Of a table's properties: the Delta table that it publishes."""
_KEPT_SNAPSHOTS = 100
"""Each commit of the catalog writes the list of all snapshots; twice as many are allowed before the oldest go."""
_ATTEMPTS = 8
_PAUSE_SECONDS = 0.2
Result = TypeVar("Result")
_PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "100"}


@dataclass(frozen=True)
class PublishedTable:
    """A Delta table and its name in the catalog. ``application`` records in its log which batch it has reached."""

    path: str
    namespace: str
    name: str
    application: str
    has_tombstones: bool = True

    @property
    def identifier(self) -> tuple[str, str]:
        """The name as pyiceberg has it."""
        return self.namespace, self.name


class _Difference(_OverwriteFiles):  # type: ignore[misc]  # mypy skips pyiceberg
    """Files added and removed, on top of the snapshot that they were compared with and of no other."""

    def _validate_concurrency(self) -> None:
        if self._commit_window is not None and not self._commit_window.is_empty():
            raise ValidationException("another snapshot was committed since the tables were compared")


def publish(catalog: Catalog, target: PublishedTable) -> bool:
    """Bring an Iceberg table to the newest version of its Delta table; return False if it was there already.

    Raises ConfigError for an Iceberg table that publishes something else, TableUnavailable if other commits prevail.
    """
    return _retry(target, lambda: _publish_once(catalog, target))


def _retry(target: PublishedTable, change: Callable[[], Result | None]) -> Result:
    """Return what a change returns, which is decided again as long as that is None, or another commit came before."""
    for attempt in range(_ATTEMPTS):
        try:
            done = change()
            if done is not None:
                return done
        except (CommitFailedException, CommitStateUnknownException, ValidationException, TableAlreadyExistsError):
            time.sleep(_PAUSE_SECONDS * attempt)
    raise TableUnavailable(
        f"the Iceberg table {target.namespace}.{target.name} was changed by other jobs each time",
        next_step="run this again; let nothing else commit to the table",
    )


def _publish_once(catalog: Catalog, target: PublishedTable) -> bool | None:
    """Publish the newest version; None if files have to be, and were, written again first."""
    read_at = int(time.time() * 1000)
    delta = open_table(target.path)
    document = delta.schema().to_json()
    columns = published_columns(document)
    table = _load(catalog, target)
    summary = _summary(table.current_snapshot())
    is_same_table = summary.get(DELTA_TABLE) == str(delta.metadata().id)
    if is_same_table and int(summary[VERSION]) >= delta.version():
        return False
    before = {one.file_path: one for one in data_files(table)}
    files = _files_of(target, delta)
    new = [read_footer(target.path, path, size) for where, (path, size) in files.items() if where not in before]
    deleted = stored_deleted(document) if target.has_tombstones else None
    if deleted is not None:
        contents = {one.path: one.content(deleted) for one in new}
        if mixed := {path for path, content in contents.items() if content is Content.MIXED}:
            separate_tombstones(target.path, mixed)
            return None
        new = [one for one in new if contents[one.path] is Content.ROWS]
    failpoint("iceberg.compared")
    removed = [one for where, one in before.items() if where not in files]
    _commit(table, target, columns, deleted, new, removed, {
        BATCH: str(delta.transaction_version(target.application) or 0), VERSION: str(delta.version()),
        DELTA_TABLE: str(delta.metadata().id), READ_AT: str(read_at),
    })
    failpoint("iceberg.committed")
    if len(table.snapshots()) > 2 * _KEPT_SNAPSHOTS:
        _expire(table, sorted(table.snapshots(), key=lambda one: one.timestamp_ms)[:-_KEPT_SNAPSHOTS])
    return True


def _commit(
    table: Table, target: PublishedTable, columns: list[PublishedColumn], deleted: str | None, new: list[FileFooter],
    removed: Iterable[DataFile], summary: dict[str, str],
) -> None:
    transaction = Transaction(table)
    if not has_columns(table.schema(), columns):
        update = transaction.update_schema()
        evolve(update, table.schema(), columns)
        update.commit()
    metadata = transaction.table_metadata
    schema: Schema = metadata.schema()
    before = table.metadata.name_mapping()
    mapping = name_mapping(before, schema, columns, deleted)
    unreadable = table.snapshots() if has_lost_fields(before, mapping) else []
    if before is None or before.model_dump_json() != mapping.model_dump_json():
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()})
    numbers, properties = field_numbers(schema, columns), metadata.properties
    difference = _Difference(
        Operation.OVERWRITE, transaction, table.io, commit_uuid=uuid.uuid4(), snapshot_properties=summary
    )
    for footer in new:
        difference.append_data_file(data_file(target.path, footer, schema, properties, numbers))
    for one in removed:
        difference.delete_data_file(one)
    difference.commit()
    if unreadable:
        ExpireSnapshots(transaction).by_ids([one.snapshot_id for one in unreadable]).commit()
    transaction.commit_transaction()
    _remove_metadata(table.io, unreadable, table.snapshots())


def expire(catalog: Catalog, target: PublishedTable, before_milliseconds: int) -> int:
    """Expire snapshots that name files which may have left the Delta table before a time; return their number.

    The newest snapshot stays: ``publish`` first. Manifests go with the last snapshot that has them; data files are left
    to Delta. Raises TableUnavailable if other commits prevail.
    """
    return _retry(target, lambda: _expire_before(catalog, target, before_milliseconds))


def _expire_before(catalog: Catalog, target: PublishedTable, before_milliseconds: int) -> int:
    table = catalog.load_table(target.identifier)
    newest = table.current_snapshot()
    old = [
        one for one in table.snapshots()
        if newest is not None and one.snapshot_id != newest.snapshot_id
        and int(_summary(one).get(READ_AT, 0)) < before_milliseconds
    ]
    if old:
        _expire(table, old)
    return len(old)


def _expire(table: Table, old: list[Snapshot]) -> None:
    transaction = Transaction(table)
    ExpireSnapshots(transaction).by_ids([one.snapshot_id for one in old]).commit()
    transaction.commit_transaction()
    _remove_metadata(table.io, old, table.snapshots())


def data_files(table: Table) -> list[DataFile]:
    """Return the files of an Iceberg table's newest snapshot."""
    snapshot = table.current_snapshot()
    return [
        entry.data_file
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.data_file.content == DataFileContent.DATA
    ]


def _load(catalog: Catalog, target: PublishedTable) -> Table:
    try:
        table = catalog.load_table(target.identifier)
    except NoSuchTableError:
        # Without columns: a change of the schema gives them their identifiers, then as always.
        table = catalog.create_table(target.identifier, Schema(), properties={**_PROPERTIES, _PATH: str(target.path)})
    if table.properties.get(_PATH) != str(target.path):
        raise ConfigError(
            f"iceberg.namespace: the table {target.namespace}.{target.name} publishes something else",
            next_step="set a namespace of its own for this source, or drop that table",
        )
    return table


def _files_of(target: PublishedTable, delta: DeltaTable) -> dict[str, tuple[str, int]]:
    """Return path and size of each file, by location, but for files that state has written for tombstones."""
    files = list_files(delta)
    return {
        file_url(target.path, path): (path, size)
        for path, size in zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True)
        if not (target.has_tombstones and path.rpartition("/")[2].startswith(f"{TOMBSTONES}-"))
    }


def _summary(snapshot: Snapshot | None) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot and snapshot.summary else {}


def _remove_metadata(io: FileIO, gone: Iterable[Snapshot], kept: Iterable[Snapshot]) -> None:
    """Remove manifest lists of snapshots that are gone, and the manifests that no snapshot has any more."""
    gone = list(gone)
    if not gone:
        return
    needed = {manifest.manifest_path for one in kept for manifest in one.manifests(io)}
    for snapshot in gone:
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in needed:
                needed.add(manifest.manifest_path)
                io.delete(manifest.manifest_path)
        io.delete(snapshot.manifest_list)
