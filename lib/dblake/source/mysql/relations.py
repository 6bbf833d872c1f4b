"""Which table a TABLE_MAP means: from the log's description to captured tables and their schemas.

The log describes a table in full (``binlog_row_metadata=FULL``), as it was when its rows were written. Only what
MariaDB leaves out, that a binary column is a UUID or an address, is asked of the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass

import pymysql

from dblake.core.errors import Unsupported
from dblake.core.names import qualified
from dblake.core.schema import Column, TableSchema
from dblake.formats.mysql_charsets import Charset, charset_named
from dblake.formats.mysql_types import FIXED, from_log, wire
from dblake.source.mysql import catalog as catalogue
from dblake.source.mysql import table_map
from dblake.source.mysql.connection import connect, explained, version_of
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.table_map import MappedColumn, TableMap

_MOST_KNOWN = 10_000
"""Descriptions remembered: a table gets a new number, and so a new one, whenever the server opens it anew."""
_WATERMARK = "watermark"
_SEQUENCE_COLUMN = "next_not_cached_value"
"""What MariaDB calls the first column of a sequence, which is a table to the log and to nobody else."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What a TABLE_MAP stands for: a captured table, the watermark table, or a table nobody asked for."""

    schema: TableSchema | None
    is_watermark_table: bool = False


class Relations:
    """The tables of one log stream. Connects by itself when something must be asked of the server.

    ``fold`` tells that the server stores tables' names in lower case, however statements write them.
    """

    def __init__(self, settings: MysqlSettings, *, fold: bool) -> None:
        self._settings = settings
        self._fold = fold
        self._conn: pymysql.Connection | None = None
        self._mariadb = settings.flavour == "mariadb"
        self._known: dict[bytes, Captured] = {}
        self._charsets: dict[int, str] = {}

    def of(self, body: bytes) -> Captured:
        """The table that a TABLE_MAP event's body describes."""
        found = self._known.get(body)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[body] = self._resolve(body)
        return found

    def captures(self, schema: str, table: str) -> bool:
        """True if rows of a table of this name are wanted."""
        own = schema == self._settings.watermark_schema
        return not own and schema not in catalogue.SYSTEM_SCHEMAS and self._settings.wanted(schema, table)

    def watches(self, schema: str, table: str) -> bool:
        """True if a change of a table of this name must not be missed: a captured one, or the watermark table."""
        return self.captures(schema, table) or (schema, table) == (self._settings.watermark_schema, _WATERMARK)

    def named(self, schema: str, table: str) -> tuple[str, str]:
        """A name out of a statement, as the server stores it."""
        return (schema.lower(), table.lower()) if self._fold else (schema, table)

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _resolve(self, body: bytes) -> Captured:
        schema, table = table_map.names(body)
        if schema == self._settings.watermark_schema:
            return Captured(None, is_watermark_table=table == _WATERMARK)
        if not self.captures(schema, table):
            return Captured(None)
        said = table_map.table_map(body, mariadb=self._mariadb)
        first = said.columns[0].name
        if first is None:
            raise Unsupported(
                f"table {qualified(schema, table)}: the log does not name its columns",
                next_step="SET GLOBAL binlog_row_metadata = 'FULL'; then capture --accept-gap, which starts behind it",
            )
        if self._mariadb and first == _SEQUENCE_COLUMN:
            return Captured(None)
        with explained(self._settings):
            return Captured(self._schema(said))

    def _schema(self, said: TableMap) -> TableSchema:
        name = qualified(said.schema_name, said.table_name)
        there = self._in_catalogue(said) if self._mariadb else {}
        columns = []
        for column in said.columns:
            try:
                spelled = self._spelled(column, there)
            except Unsupported as error:
                raise Unsupported(
                    f"table {name}, column {column.name}: {error.what}", next_step=error.next_step
                ) from error
            columns.append(Column(column.name or "", spelled, column.nullable, column.key))
        return TableSchema(name, tuple(columns))

    def _spelled(self, column: MappedColumn, there: dict[str, str]) -> str:
        in_catalogue = there.get(column.name or "")
        if in_catalogue in FIXED and wire(in_catalogue) == (column.code, column.meta):
            return in_catalogue
        charset = None if column.collation is None else self._charset(column.collation)
        labels = None
        if column.labels is not None:
            labels = [_label(raw, charset_named(charset or "binary")) for raw in column.labels]
        return from_log(
            column.code, column.meta, unsigned=column.unsigned, charset=charset, labels=labels,
            dimensions=column.dimensions,
        )

    def _in_catalogue(self, said: TableMap) -> dict[str, str]:
        """The types of the table's columns as it is now; it may have changed since, or be gone."""
        with self._asked().cursor() as cur:
            found = catalogue.table_by_name(cur, said.schema_name, said.table_name)
        return {c.name: c.type for c in found.schema.columns} if found else {}

    def _charset(self, collation: int) -> str:
        if not self._charsets:
            self._charsets = self._all_charsets()
        return self._charsets.get(collation, f"of collation {collation}")

    def _all_charsets(self) -> dict[int, str]:
        """The character set of every collation by number."""
        conn = self._asked()
        # Newer MariaDB has collations that go with many character sets, by a number for each.
        many = self._mariadb and version_of(conn).number >= (10, 10, 0)
        view = "COLLATION_CHARACTER_SET_APPLICABILITY" if many else "COLLATIONS"
        with conn.cursor() as cur:
            cur.execute(f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{view} WHERE ID IS NOT NULL")
            return {int(number): str(name) for number, name in cur.fetchall()}

    def _asked(self) -> pymysql.Connection:
        """A connection; made anew if the server has closed it meanwhile, since it may not be used for days."""
        if self._conn is not None:
            try:
                self._conn.ping(reconnect=False)
            except (pymysql.Error, OSError):
                self._conn = None
        if self._conn is None:
            self._conn = connect(self._settings, purpose="catalogue")
        return self._conn


def _label(raw: bytes, charset: Charset) -> str:
    """A label as the catalogue spells it."""
    text = raw.decode(charset.codec, "surrogateescape").translate({ord(c): to for c, to in charset.differs.items()})
    # What the codec leaves out is a control character of the same number, or no text in any case.
    return "".join(chr(ord(c) - 0xDC00) if "\udc80" <= c <= "\udcff" else c for c in text)
