"""The GTIDs in the server's binlog: the set that precedes a file, and each transaction of a file with its place.

Below ``log``, which needs the exact set of its first position, and ``continuation``, which finds a set's end in another
server's log. Guarantee: a file is read as the server sends it, from its first event on; only its GTID events are
decoded, so that a gigabyte takes seconds. A set that is read with ``SHOW`` is the server's own text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import numpy as np
from pymysql.cursors import Cursor
from pymysqlreplication.constants import BINLOG

from dblake.base.core.errors import SourceError
from dblake.ingest.source.mysql import control_events, events, gtid_events
from dblake.ingest.source.mysql.connection import connect
from dblake.ingest.source.mysql.driver_errors import log_error, translate_errors
from dblake.ingest.source.mysql.gtids import ExecutedGtids, Gtid, executed_gtids
from dblake.ingest.source.mysql.log_position import FIRST_OFFSET, LogPosition, unwrap_offset
from dblake.ingest.source.mysql.packets import HEARTBEAT_SECONDS, DumpEnded, PacketEvents, Packets, start_dump
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.sql_literals import string

_SILENCE_SECONDS = 15 * HEARTBEAT_SECONDS
_LISTS = ("Previous_gtids", "Gtid_list")
_FIRST_EVENTS = 8
"""The list of GTIDs is among so many events at the beginning of a file."""
_READERS = {
    BINLOG.GTID_LOG_EVENT: gtid_events.read_gtid,
    BINLOG.ANONYMOUS_GTID_LOG_EVENT: gtid_events.read_gtid,
    events.GTID_TAGGED: gtid_events.read_tagged_gtid,
    BINLOG.MARIADB_GTID_EVENT: gtid_events.read_mariadb_gtid,
}
_READ = np.isin(
    np.arange(256), [*_READERS, BINLOG.ROTATE_EVENT, BINLOG.STOP_EVENT, BINLOG.FORMAT_DESCRIPTION_EVENT]
)


def has_gtids(cur: Cursor, settings: MysqlSettings) -> bool:
    """Return True if every transaction of the server's log has a GTID."""
    if settings.flavour == "mariadb":
        return True
    cur.execute("SELECT @@GLOBAL.gtid_mode")
    return str(cur.fetchone()[0]) == "ON"


def gtids_on_server(cur: Cursor, settings: MysqlSettings) -> tuple[ExecutedGtids, ExecutedGtids]:
    """Return the GTIDs that the server has executed, and the part of them that no file of its log has (MySQL)."""
    flavour = settings.flavour
    cur.execute(
        "SELECT @@GLOBAL.gtid_binlog_state, ''" if flavour == "mariadb"
        else "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged"
    )
    executed, unlogged = cur.fetchone()
    return executed_gtids(flavour, str(executed or "")), executed_gtids(flavour, str(unlogged or ""))


def gtids_before(cur: Cursor, settings: MysqlSettings, file: str) -> ExecutedGtids:
    """Return the GTIDs of the transactions before a file, as the server lists them at its beginning."""
    cur.execute(f"SHOW BINLOG EVENTS IN {string(file)} LIMIT {_FIRST_EVENTS}")
    lists = [str(row[5]).strip("[]") for row in cur.fetchall() if row[2] in _LISTS]
    return executed_gtids(settings.flavour, lists[0] if lists else "")


def with_exact_gtids(cur: Cursor, settings: MysqlSettings, position: LogPosition) -> LogPosition:
    """Return a position with the GTIDs of all transactions before it; as it is if the server has no GTIDs.

    What the server reports beside a position may lack transactions that were being committed then.
    """
    if position.is_exact or not has_gtids(cur, settings):
        return position
    executed = gtids_before(cur, settings, position.file).plus(gtids_on_server(cur, settings)[1])
    if position.offset > FIRST_OFFSET:
        for gtid, start in FileTransactions(settings, position.file):
            if start >= position.offset:
                break
            if gtid is not None:
                executed.add(gtid)
    return replace(position, gtids=str(executed), is_exact=True)


class FileTransactions:
    """The transactions of one file, as pairs of a GTID (None without one) and the offset where it begins.

    ``created`` and ``end`` are set once they have been iterated: when the server began the file, in seconds since 1970,
    and the offset behind its last transaction.
    """

    def __init__(self, settings: MysqlSettings, file: str) -> None:
        self._settings, self._file = settings, file
        self.created, self.end = 0, FIRST_OFFSET

    def __iter__(self) -> Iterator[tuple[Gtid | None, int]]:
        """Read the file from the server. Raises SourceError if the server sends nothing for long."""
        for received in self._receive():
            for number in _numbers_to_read(received):
                event = received[number]
                read = _READERS.get(event[4])
                if read is not None:
                    size, low = (int.from_bytes(event[at : at + 4], "little") for at in (9, 13))
                    yield read(event).gtid, unwrap_offset(low, self.end) - size
                elif self._is_end(event):
                    self._advance(received, number)
                    return
            self._advance(received, len(received))

    def _receive(self) -> Iterator[PacketEvents]:
        """Yield what the server sends of its log from the file's beginning to the log's end."""
        settings = self._settings
        conn = connect(settings, purpose="log")
        try:
            with translate_errors(settings):
                start_dump(conn, settings, file=self._file, offset=FIRST_OFFSET, waits=False)
                packets, received_at = Packets(conn), time.monotonic()
                while time.monotonic() - received_at < _SILENCE_SECONDS:
                    received = packets.receive(1.0)
                    if received is not None:
                        received_at = time.monotonic()
                        yield received
        except DumpEnded as ended:
            if not ended.number:
                return
            raise log_error(settings, ended, f"{self._file}:{self.end}") from ended
        finally:
            conn._force_close()
        raise SourceError(
            f"source {settings.name}: the server has sent nothing of {self._file} for {_SILENCE_SECONDS:.0f} s",
            next_step="check that the server is up, then run again",
        )

    def _is_end(self, event: bytes) -> bool:
        """Return True if the file ends with this event, which is none of a transaction."""
        if event[4] == BINLOG.FORMAT_DESCRIPTION_EVENT:
            self.created = self.created or control_events.read_format_description(event).created
            return False
        if not event[17] & events.ARTIFICIAL_FLAG:
            return True
        has_checksum = crc32(event) == events.CRC32_RESIDUE
        return control_events.read_rotate(event[: -events.CHECKSUM_BYTES] if has_checksum else event)[0] != self._file

    def _advance(self, received: PacketEvents, stop: int) -> None:
        """Note where the last of the first events ends; from there on offsets past 4 GiB are known."""
        for number in range(stop - 1, -1, -1):
            event = received[number]
            low = int.from_bytes(event[13:17], "little")
            if low and not event[17] & events.ARTIFICIAL_FLAG and event[4] not in events.HEARTBEATS:
                self.end = unwrap_offset(low, self.end)
                return


def _numbers_to_read(received: PacketEvents) -> list[int]:
    """Return which events name a transaction or begin or end a file."""
    if not len(received):
        return []
    kinds = np.frombuffer(received.data, np.uint8)[received.bounds[:-1] + PacketEvents.HEAD_BYTES + 4]
    numbers: list[int] = np.flatnonzero(_READ[kinds]).tolist()
    return numbers
