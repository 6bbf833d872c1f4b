"""A table's fingerprint as capture saves it, and what two of them show: rows or values that changed without events.

Place: below ``stale_detector``, which compares each scan of the catalog with the fingerprints saved before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dblake.base.core.source import ColumnFingerprint, TableFingerprint
from dblake.ingest.capture.documents import Document, document_errors

RENAMED = "it had another name for a time, or was recreated"


@dataclass(frozen=True, slots=True)
class SavedFingerprint:
    """A table's fingerprint as saved: ``TableFingerprint`` as a document."""

    table: str
    schema_id: str
    columns: Mapping[str, ColumnFingerprint]
    bodies: tuple[str, ...]
    file: str
    published: str = ""
    former: tuple[str, ...] = ()
    """Names of columns that it once had: state keeps their last values."""
    key: tuple[str, ...] = ()
    """The primary key; empty in a document of a version that did not save it."""
    logged: tuple[str, ...] = ()
    """Bodies with rows in the log that no scan has seen since."""

    @classmethod
    def from_catalog(cls, current: TableFingerprint, saved: SavedFingerprint | None = None) -> SavedFingerprint:
        """Return a fingerprint from the catalog as it is saved, after an earlier one."""
        schema = current.schema
        former = {*saved.former, *saved.columns} - current.columns.keys() if saved else ()
        return cls(
            schema.table, schema.schema_id, dict(current.columns), tuple(sorted(current.bodies)), current.file,
            current.published, tuple(sorted(former)), tuple(schema.primary_key), saved.logged if saved else (),
        )

    @classmethod
    def from_document(cls, path: str, document: Document) -> SavedFingerprint:
        """Return the fingerprint of a document. Raises ConfigError if another version wrote it."""
        with document_errors(path, "delete the document and dump its table again"):
            columns = {name: ColumnFingerprint(**column) for name, column in document["columns"].items()}
            names = {name: tuple(document.get(name, ())) for name in ("former", "key", "logged")}
            return cls(**document | names | {"columns": columns, "bodies": tuple(document["bodies"])})


def stale_reason(saved: SavedFingerprint, current: TableFingerprint) -> str | None:
    """Return why a table's rows may differ from what its row events show; None if they cannot."""
    return rows_reason(saved, current) or _columns_reason(saved, current)


def rows_reason(saved: SavedFingerprint, current: TableFingerprint) -> str | None:
    """Return why a table may have other rows, or have lost some, without row events."""
    if missing := set(saved.bodies) - set(current.bodies):
        if all(body.startswith("key") for body in missing):
            return "its key was created again, and may have been deferrable before"
        is_recreated = any(body.startswith("table") for body in missing)
        if not is_recreated and all(body.startswith(("file", "key")) and "partition" not in body for body in missing):
            return "its rows were rewritten, perhaps with writes that were not logged"
        return "it was recreated" if is_recreated else "a partition of it was removed or rewritten"
    attached = [body for body, has_rows in current.bodies.items() if has_rows and body not in saved.bodies]
    if any(body.startswith("table") for body in attached):
        return RENAMED
    if attached:
        return "a table was attached to it as a partition"
    if saved.published and current.published and saved.published != current.published:
        return "its publication changed, so that changes may be missing in the log"
    return None


def changes_keys(saved: SavedFingerprint, current: TableFingerprint) -> bool:
    """Return True if rows may have other keys than before, so that a dump deletes all earlier rows."""
    key = tuple(current.schema.primary_key)
    if saved.key and saved.key != key:
        return True
    return any(_is_replaced(saved.columns[name], current.columns[name]) for name in key if name in saved.columns)


def _is_replaced(former: ColumnFingerprint, column: ColumnFingerprint) -> bool:
    return (former.number, former.type) != (column.number, column.type)


def _columns_reason(saved: SavedFingerprint, current: TableFingerprint) -> str | None:
    """Return why the rows of a table, which are the same, may have other values without row events."""
    numbers = {column.number for column in saved.columns.values()}
    for name, column in current.columns.items():
        former = saved.columns.get(name)
        if former is None and name in saved.former:
            return f"column {name} was dropped and added again"
        if former is None:
            is_null = column.blank and column.number not in numbers and current.file and current.file == saved.file
            if not is_null:
                return f"column {name} was added"
        elif _is_replaced(former, column):
            return f"column {name} was replaced or has another type"
        elif any(column.labels.get(number, label) != label for number, label in former.labels.items()):
            return f"a label of column {name} was renamed"
    if current.file != saved.file and any(
        column.version != saved.columns[name].version
        for name, column in current.columns.items() if name in saved.columns
    ):
        return "its columns were rewritten"
    return None
