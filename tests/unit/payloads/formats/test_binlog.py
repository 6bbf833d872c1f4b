"""Event and field types that decoding declares, compared with mysql-replication's."""

from __future__ import annotations

from pymysqlreplication.constants import BINLOG, FIELD_TYPE

from dblake.payloads.decode import mysql_json_values as values
from dblake.payloads.formats.binlog import DELETE_ROWS, FIRST_ROWS_V2, UPDATE_ROWS, WRITE_ROWS


def test_rows_event_types_equal_the_librarys() -> None:
    """Executors have no database driver, so decoding cannot import the library's constants."""
    assert WRITE_ROWS == (BINLOG.WRITE_ROWS_EVENT_V1, BINLOG.WRITE_ROWS_EVENT_V2)
    assert UPDATE_ROWS == (BINLOG.UPDATE_ROWS_EVENT_V1, BINLOG.UPDATE_ROWS_EVENT_V2)
    assert DELETE_ROWS == (BINLOG.DELETE_ROWS_EVENT_V1, BINLOG.DELETE_ROWS_EVENT_V2)
    assert min(WRITE_ROWS[1], UPDATE_ROWS[1], DELETE_ROWS[1]) == FIRST_ROWS_V2


def test_json_opaque_types_equal_the_librarys() -> None:
    assert (values._TIMESTAMP, values._DATE, values._TIME, values._DATETIME, values._DECIMAL) == (
        FIELD_TYPE.TIMESTAMP, FIELD_TYPE.DATE, FIELD_TYPE.TIME, FIELD_TYPE.DATETIME, FIELD_TYPE.NEWDECIMAL
    )
