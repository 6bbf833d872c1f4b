"""Statements in the log: what each does to the open transaction and to captured tables.

Called by ``transactions`` for Query events other than BEGIN and COMMIT. Promises that a statement either steers the
transaction, becomes a landing row for each captured table that it changes, has no effect on captured tables, or is
rejected by name. What its words mean is left to ``ddl``.
"""

from __future__ import annotations

from dblake.base.core.errors import ACCEPT_GAP, PositionLost, Unsupported
from dblake.base.core.names import qualified
from dblake.ingest.source.mysql.ddl import Statement, StatementKind, classify
from dblake.ingest.source.mysql.events import Query
from dblake.ingest.source.mysql.relations import Relations
from dblake.ingest.source.mysql.transaction_state import TransactionState
from dblake.landing.columns import DDL, TRUNCATE

SKIP_STEP = "capture --accept-gap starts behind it, with a new incarnation and dumps of all tables"


class LoggedStatements:
    """Applies statements of the log to a stream's transaction state."""

    def __init__(self, relations: Relations, state: TransactionState) -> None:
        self._relations, self._state, self._pieces = relations, state, state.pieces

    def apply(self, event: bytes, query: Query) -> None:
        """Apply one statement. Raises Unsupported or PositionLost for one that cannot be captured."""
        statement = classify(query)
        kind = statement.kind
        self._state.enter(event, rows_follow=kind in (StatementKind.BEGIN, StatementKind.XA_START))
        match kind:
            case StatementKind.XA_START:
                self._pieces.hold()
            case StatementKind.COMMIT:
                self._state.commit()
            case StatementKind.ROLLBACK:
                self._reject_lost_rows()
                self._pieces.roll_back()
                self._state.end()
            case StatementKind.ROLLBACK_TO:
                self._reject_lost_rows()
            case StatementKind.XA_COMMIT:
                self._commit_prepared(statement.xa)
            case StatementKind.XA_ROLLBACK:
                self._pieces.roll_back(statement.xa)
                self._state.end()
            case _:
                self._apply_to_tables(query, statement)
                if kind is not StatementKind.BEGIN and not self._state.is_open:
                    self._state.commit()

    def _apply_to_tables(self, query: Query, statement: Statement) -> None:
        if statement.kind in (StatementKind.DDL, StatementKind.TRUNCATE):
            self._append_schema_change(query, statement)
        elif statement.kind is StatementKind.ROWS:
            self._reject_row_statement(statement)
        elif statement.kind is StatementKind.UNKNOWN:
            raise Unsupported(
                f"{self._where}: a statement of a kind that dblake does not know, which may be a change",
                next_step=f"report its first word; {SKIP_STEP}",
            )

    @property
    def _where(self) -> str:
        return self._state.cursor.description

    def _commit_prepared(self, name: str) -> None:
        try:
            self._pieces.commit_prepared(name)
        except KeyError:
            raise PositionLost(
                f"{self._where}: an XA transaction is committed that was prepared before the log was followed, a gap",
                next_step=ACCEPT_GAP,
            ) from None
        self._state.end()

    def _append_schema_change(self, query: Query, statement: Statement) -> None:
        fold = self._relations.fold_name
        if not statement.tables:
            schema, _ = fold(statement.dropped_schema, "")
            effects: dict[str, bool | str] = {"rewrites": False, "gone": False}
            self._pieces.append_statement(DDL, {None: effects | ({"dropped_schema": schema} if schema else {})}, query)
            return
        rewritten, gone = ({fold(*name) for name in names} for names in (statement.rewrites, statement.gone))
        captured: dict[str | None, dict[str, bool]] = {
            qualified(*name): {"rewrites": name in rewritten, "gone": name in gone}
            for name in (fold(*table) for table in statement.tables) if self._relations.is_captured(*name)
        }
        kind = DDL if statement.kind is StatementKind.DDL else TRUNCATE
        self._pieces.append_statement(kind, captured, query)

    def _reject_row_statement(self, statement: Statement) -> None:
        names = [self._relations.fold_name(*name) for name in statement.tables]
        watched = [name for name in names if self._relations.is_watched(*name)]
        if not names or not all(self._relations.is_captured(*name) for name in watched):
            what = "of the watermark table" if names else "of tables that cannot be determined"
            raise Unsupported(
                f"{self._where}: a change {what} was logged as a statement, not as rows",
                next_step=f"SET GLOBAL binlog_format = 'ROW' and in all sessions; then {SKIP_STEP}",
            )
        for name in watched:
            self._relations.reject(
                qualified(*name), "a change was logged as a statement, not as rows: binlog_format was not ROW"
            )

    def _reject_lost_rows(self) -> None:
        if self._pieces.has_rows:
            raise Unsupported(
                f"{self._where}: a transaction is rolled back after its rows were logged, some of which may stay",
                next_step=f"do not mix transactional and other engines in one transaction; {SKIP_STEP}",
            )
