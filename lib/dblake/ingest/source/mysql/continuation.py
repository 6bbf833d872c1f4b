"""Where another server's log continues what landed, by the set of GTIDs that landed: after a failover or a move.

Beside ``log``, which then resumes there by file and offset. Guarantee: before the returned position the other server's
log has the transactions that landed and no others, behind it only others; nothing is read twice or is missing.
A server that lacks a transaction that landed, or has one among them that landing's server never sent, is rejected with
the number of these transactions and their GTIDs.

The position is found in two steps. Each file lists the GTIDs before it, so the newest file that some landed transaction
does not precede holds the last of them. That file is read, and older ones only to name what did not land. What the
server skips (COM_BINLOG_DUMP_GTID, ``@slave_connect_state``) would be the same transactions, without showing
what lies among them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymysql.cursors import Cursor

from dblake.base.core.errors import ACCEPT_GAP, DivergedServer, PositionLost, WrongServer
from dblake.base.core.position import ResumePoint
from dblake.ingest.source.mysql.connection import open_cursor
from dblake.ingest.source.mysql.file_gtids import FileTransactions, gtids_before, gtids_on_server, has_gtids
from dblake.ingest.source.mysql.gtids import Absent, ExecutedGtids, Gtid, executed_gtids
from dblake.ingest.source.mysql.log_position import FIRST_OFFSET, LogPosition
from dblake.ingest.source.mysql.log_retention import list_log_files
from dblake.ingest.source.mysql.settings import MysqlSettings

_MAX_SHOWN = 400
"""A set of GTIDs has no bound; a message has."""


def find_continuation(settings: MysqlSettings, resume: ResumePoint) -> ResumePoint | None:
    """Return where this server's log continues ``resume``, in the next incarnation; None if GTIDs cannot show it.

    Raises WrongServer if the server lacks transactions that landed, DivergedServer if it has others among them. Raises
    PositionLost if it has removed log that did not land, and if landing ends inside a transaction.
    """
    landed = LogPosition.parse(resume.token)
    with open_cursor(settings, purpose="log start") as cur:
        if not landed.is_exact or not landed.gtids or not has_gtids(cur, settings):
            return None
        position = _Search(settings, cur, executed_gtids(settings.flavour, landed.gtids)).run(
            is_inside=resume.landed is not None
        )
    return ResumePoint(resume.incarnation + 1, position.token)


class _Search:
    """The search for the end of ``landed`` in one server's log."""

    def __init__(self, settings: MysqlSettings, cur: Cursor, landed: ExecutedGtids) -> None:
        self._settings, self._cur, self._landed = settings, cur, landed
        self._executed, self._unlogged = gtids_on_server(cur, settings)

    def run(self, *, is_inside: bool) -> LogPosition:
        self._require_all()
        if is_inside:
            raise PositionLost(
                f"source {self._settings.name}: another server answers, and landing ends inside a transaction, or"
                " beside prepared ones, which its log may divide otherwise: a gap", next_step=ACCEPT_GAP,
            )
        files = list(list_log_files(self._cur))
        last = self._find_last_file(files)
        if last is None:
            return self._before(files[0])
        return self._behind_last(files[: last + 1])

    def _require_all(self) -> None:
        lacking = self._landed.absent_from(self._executed)
        if not lacking.count:
            return
        what = self._describe(lacking, "lacks", "that landed")
        self._cur.execute("SELECT @@GLOBAL.read_only")
        if self._cur.fetchone()[0] not in (0, "OFF"):
            raise WrongServer(
                f"{what}; it is read-only, and may still receive them",
                next_step="wait until it is promoted, or set source.host to the primary; then start capture again",
            )
        # Not for good: a replica that accepts writes may still receive them.
        raise WrongServer(what, next_step=f"set source.host to a server that has them; or {ACCEPT_GAP}")

    def _find_last_file(self, files: Sequence[str]) -> int | None:
        """Return which file has the last landed transaction; None if all are in older files than the server has."""
        logged = self._landed.minus(self._unlogged)
        return next(
            (n for n in reversed(range(len(files))) if logged.absent_from(self._gtids_before(files[n])).count), None
        )

    def _gtids_before(self, file: str) -> ExecutedGtids:
        return gtids_before(self._cur, self._settings, file)

    def _before(self, oldest: str) -> LogPosition:
        """Return the beginning of the server's log. Raises PositionLost if what precedes it did not all land."""
        removed = self._unplaced(self._gtids_before(oldest))
        if removed.count:
            raise PositionLost(
                self._describe(removed, "has removed from its log", "that did not land") + ", a gap",
                next_step=ACCEPT_GAP,
            )
        transactions = FileTransactions(self._settings, oldest)
        next(iter(transactions), None)
        return self._position(oldest, FIRST_OFFSET, transactions.created)

    def _behind_last(self, files: Sequence[str]) -> LogPosition:
        """Return the place behind the last landed transaction, which is in the last of these files.

        Raises DivergedServer for other transactions before it.
        """
        first = len(files) - 1
        while first and self._unplaced(self._gtids_before(files[first])).count:
            first -= 1
        among = _Others(self._settings.flavour, self._unplaced(self._gtids_before(files[first])))
        for file in files[first:]:
            # A transaction counts as one among those that landed once one of those follows.
            behind, follows, transactions = None, False, FileTransactions(self._settings, file)
            for gtid, start in transactions:
                if follows:
                    behind, follows = start, False
                if gtid is not None and self._landed.has(gtid):
                    follows = True
                    among.confirm()
                else:
                    among.add(gtid)
        if confirmed := among.confirmed:
            raise DivergedServer(
                self._describe(confirmed, "has", "among those that landed, which did not land"),
                next_step=f"set source.host to a server without them; or {ACCEPT_GAP}",
            )
        offset = transactions.end if follows or behind is None else behind
        return self._position(files[-1], offset, transactions.created)

    def _unplaced(self, before: ExecutedGtids) -> Absent:
        self._cur.execute("SELECT @@GLOBAL.server_id")
        return before.plus(self._unlogged).unplaced_by(self._landed, int(self._cur.fetchone()[0]))

    def _position(self, file: str, offset: int, created: int) -> LogPosition:
        return LogPosition(file, offset, created, str(self._landed), is_exact=True)

    def _describe(self, some: Absent, does: str, which: str) -> str:
        plural = "" if some.count == 1 else "s"
        return (
            f"source {self._settings.name}: the server that answers {does} {some.count} transaction{plural} {which}:"
            f" {_shown(some.text)}; it has {_shown(str(self._executed))}, landing has {_shown(str(self._landed))}"
        )


class _Others:
    """Transactions of a log that did not land, in its order; ``confirm`` notes that a landed one follows."""

    def __init__(self, flavour: str, before: Absent) -> None:
        self._flavour, self._count = flavour, before.count
        self._texts = [before.text] if before.count else []
        self._start()

    def _start(self) -> None:
        self._pending, self._gtids = 0, executed_gtids(self._flavour, "")

    def add(self, gtid: Gtid | None) -> None:
        """Add a transaction; one without a GTID is counted only."""
        self._pending += 1
        if gtid is not None:
            self._gtids.add(gtid)

    def confirm(self) -> None:
        """Note that a landed transaction follows those added so far."""
        if self._pending:
            self._count += self._pending
            self._texts.append(str(self._gtids) or "without a GTID")
            self._start()

    @property
    def confirmed(self) -> Absent | None:
        """The transactions that a landed one follows; None if there are none."""
        return Absent(self._count, ", ".join(self._texts)) if self._count else None


def _shown(gtids: str) -> str:
    return gtids if len(gtids) <= _MAX_SHOWN else f"{gtids[:_MAX_SHOWN]}…"
