"""The captured table and schema behind a TABLE_MAP event.

The log describes a table in full (``binlog_row_metadata=FULL``), as it was when its rows were written. Only what
MariaDB leaves out, that a binary column is a UUID or an address, is read from the catalog. Guarantee: a column whose
type neither shows is not guessed; its table is rejected until the catalog shows it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import pymysql

from dblake.base.core.errors import Unsupported
from dblake.base.core.names import qualified
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.mysql import catalog
from dblake.ingest.source.mysql.column_types import log_encoding, type_from_log
from dblake.ingest.source.mysql.connection import connect, version_of
from dblake.ingest.source.mysql.driver_errors import translate_errors
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.table_map import MappedColumn, TableMap, read_names, read_table_map
from dblake.ingest.source.mysql.watermarks import WATERMARK_TABLE
from dblake.payloads.formats.mysql_charsets import Charset, charset_named
from dblake.payloads.formats.mysql_types import FIXED, parse

_MAX_CACHED = 10_000
"""Descriptions in the cache. A table gets a new table id, and so another description, each time the server opens it."""
_REJECTED_SECONDS = 1.0
"""How long a rejection is cached: a grant that shows the table in the catalog leaves the log's description as it is."""
_AMBIGUOUS = frozenset(f"binary({size})" for size in FIXED.values())
"""Types as which MariaDB's log also has UUIDs and addresses."""
_SEQUENCE_COLUMN = "next_not_cached_value"
"""The first column of a MariaDB sequence, which the log writes like a table."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The table of a TABLE_MAP: captured (with its schema), the watermark table, rejected, or another one."""

    schema: TableSchema | None
    is_watermark_table: bool = False
    rejected: tuple[str, str] | None = None
    """Name and reason of a table that should be captured and whose rows cannot be."""
    expires: float = math.inf
    """When the table has to be resolved again, by the monotonic clock."""


class Relations:
    """The tables of one log stream. Opens a connection when it needs the catalog.

    ``folds_names`` is true if the server stores tables' names in lower case, however statements write them.
    """

    def __init__(self, settings: MysqlSettings, *, folds_names: bool) -> None:
        self._settings = settings
        self._folds_names = folds_names
        self._conn: pymysql.Connection | None = None
        self._is_mariadb = settings.flavour == "mariadb"
        self._cache: dict[bytes, Captured] = {}
        self._charsets: dict[int, str] = {}
        self._typed: dict[tuple[str, str | None], str] = {}
        """The types that the catalog gave columns that the log does not type, by table and column."""
        self._rejected: dict[str, str] = {}

    def reject(self, table: str, reason: str) -> None:
        """Record a table of which the log has a change that cannot be captured."""
        self._rejected[table] = reason

    def take_rejected(self) -> dict[str, str]:
        """Return the tables rejected since the last call, with the reasons."""
        rejected, self._rejected = self._rejected, {}
        return rejected

    def table_of(self, body: bytes) -> Captured:
        """Return the table that a TABLE_MAP event's body describes; one that cannot be read is rejected."""
        captured = self._cache.get(body)
        if captured is None or captured.expires <= time.monotonic():
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            captured = self._resolve(body)
            if captured.rejected:
                captured = replace(captured, expires=time.monotonic() + _REJECTED_SECONDS)
            self._cache[body] = captured
        if captured.rejected:
            self.reject(*captured.rejected)
        return captured

    def is_captured(self, schema: str, table: str) -> bool:
        """Return True if rows of a table of this name are captured."""
        is_own = schema == self._settings.watermark_schema
        return not is_own and schema not in catalog.SYSTEM_SCHEMAS and self._settings.table_filter(schema, table)

    def is_watched(self, schema: str, table: str) -> bool:
        """Return True for a captured table and for the watermark table: no change of them may be missed."""
        return self.is_captured(schema, table) or (schema, table) == (self._settings.watermark_schema, WATERMARK_TABLE)

    def fold_name(self, schema: str, table: str) -> tuple[str, str]:
        """Return a statement's table name as the server stores it."""
        return (schema.lower(), table.lower()) if self._folds_names else (schema, table)

    def close(self) -> None:
        """Close the catalog connection, if there is one."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _resolve(self, body: bytes) -> Captured:
        schema, table = read_names(body)
        if schema == self._settings.watermark_schema:
            return Captured(None, is_watermark_table=table == WATERMARK_TABLE)
        if not self.is_captured(schema, table):
            return Captured(None)
        described = read_table_map(body, mariadb=self._is_mariadb)
        first = described.columns[0].name
        if first is None:
            reason = "the log does not name its columns: binlog_row_metadata was not FULL"
            return Captured(None, rejected=(qualified(schema, table), reason))
        if self._is_mariadb and first == _SEQUENCE_COLUMN:
            return Captured(None)
        try:
            with translate_errors(self._settings):
                return Captured(self._schema(described))
        except Unsupported as error:
            return Captured(None, rejected=(qualified(schema, table), error.what))

    def _schema(self, described: TableMap) -> TableSchema:
        name = qualified(described.schema_name, described.table_name)
        catalog_types = self._catalog_types(described) if self._is_mariadb else {}
        columns = []
        for column in described.columns:
            try:
                type_ = self._column_type(column, catalog_types.get(column.name or ""), name)
            except Unsupported as error:
                raise Unsupported(
                    f"table {name}, column {column.name}: {error.what}", next_step=error.next_step
                ) from error
            columns.append(Column(column.name or "", type_, column.nullable, column.key))
        return TableSchema(name, tuple(columns))

    def _column_type(self, column: MappedColumn, in_catalog: str | None, table: str) -> str:
        # The catalog may be newer than the row: what it had when an earlier row was read may fit.
        for known in (in_catalog, self._typed.get((table, column.name))):
            if known and (known in FIXED or known in _AMBIGUOUS) and log_encoding(known) == (column.code, column.meta):
                self._typed[table, column.name] = known
                return known
        charset = None if column.collation is None else self._charset(column.collation)
        labels = None
        if column.labels is not None:
            labels = [_decode_label(raw, charset_named(charset or "binary")) for raw in column.labels]
        type_ = type_from_log(
            column.code, column.meta, unsigned=column.unsigned, charset=charset, labels=labels,
            dimensions=column.dimensions,
        )
        if self._is_mariadb and type_ in _AMBIGUOUS:
            raise Unsupported(
                f"the log has UUIDs and addresses as {type_}, too, and the catalog does not show which type it is",
                next_step="run preflight --init, which grants SELECT on the table",
            )
        if parse(type_).old and in_catalog != type_:
            raise Unsupported(
                "its fractional digits are unknown: the log does not show those of MariaDB 5.3's format, nor does the"
                " catalog now", next_step="ALTER TABLE … FORCE with mysql56_temporal_format=ON",
            )
        return type_

    def _catalog_types(self, described: TableMap) -> dict[str, str]:
        """Return the types of the table's columns as it is now; it may have changed since, or be gone."""
        with self._connection().cursor() as cur:
            table = catalog.table_by_name(cur, described.schema_name, described.table_name)
        return {c.name: c.type for c in table.schema.columns} if table else {}

    def _charset(self, collation: int) -> str:
        if not self._charsets:
            self._charsets = self._read_charsets()
        return self._charsets.get(collation, f"of collation {collation}")

    def _read_charsets(self) -> dict[int, str]:
        """Return the character set of every collation, by its number."""
        conn = self._connection()
        # From 10.10 on MariaDB has collations of many character sets, with a number for each.
        is_shared = self._is_mariadb and version_of(conn).number >= (10, 10, 0)
        view = "COLLATION_CHARACTER_SET_APPLICABILITY" if is_shared else "COLLATIONS"
        with conn.cursor() as cur:
            cur.execute(f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{view} WHERE ID IS NOT NULL")
            return {int(number): str(name) for number, name in cur.fetchall()}

    def _connection(self) -> pymysql.Connection:
        """Return the catalog connection; reconnects if the server has closed it, as it may be idle for days."""
        if self._conn is not None:
            try:
                self._conn.ping(reconnect=False)
            except (pymysql.Error, OSError):
                self._conn = None
        if self._conn is None:
            self._conn = connect(self._settings, purpose="catalog")
        return self._conn


def _decode_label(raw: bytes, charset: Charset) -> str:
    """Return an enum's or a set's label as the catalog spells it."""
    text = raw.decode(charset.codec, "surrogateescape").translate({ord(c): to for c, to in charset.differs.items()})
    # A byte without a character in the codec is a control character of the same number, or no text in any case.
    return "".join(chr(ord(c) - 0xDC00) if "\udc80" <= c <= "\udcff" else c for c in text)
