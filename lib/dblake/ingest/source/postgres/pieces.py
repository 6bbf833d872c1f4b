"""Collects the messages of a log stream and cuts them into pieces, at transaction ends where no limit forbids it.

Guarantee: a piece holds whole transactions, or ends inside one, before a row that may be its last; its resume point
skips exactly the rows that were returned. Reading the connection is for ``log``.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from dblake.base.core.errors import SourceError
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import LogPiece, WatermarkSeen
from dblake.ingest.source.postgres import frames, pgoutput
from dblake.ingest.source.postgres.lsn import lsn_text
from dblake.ingest.source.postgres.relations import Relations


class PieceBuilder:
    """The messages read and not yet returned. The stream appends to ``run`` directly and sets ``committed``.

    ``_open_start`` is the index in ``_framed`` at which the open transaction begins. ``_undecided`` is the index of its
    last captured row, alone in its table: only the next message shows whether it is the transaction's last row.
    """

    def __init__(self, tables: Relations, start: ResumePoint, near_txid: int) -> None:
        self._tables = tables
        self._incarnation, self._token, self._skip_to = start.incarnation, start.token, start.landed
        self._near_txid = near_txid
        self.run = frames.MessageRun()
        self.committed: bytes | None = None
        """The last Commit message since the last piece."""
        self.unframed_bytes = 0
        self._framed: list[pa.Table] = []
        self._open_start = 0
        self._undecided: int | None = None
        self._watermarks: list[WatermarkSeen] = []
        self._rows = self._bytes = 0

    def count_bytes(self, size: int) -> None:
        """Add the size of messages that were appended to ``run``."""
        self._bytes += size
        self.unframed_bytes += size

    def is_full(self, max_bytes: int, max_rows: int) -> bool:
        """Return True if a piece of this size has to be cut now."""
        return self._bytes >= max_bytes or self._rows + len(self.run.messages) >= max_rows

    def register_table(self, message: bytes) -> None:
        """Add a message that describes a table."""
        # Earlier rows have the table's former schema: frame them first.
        self.frame_pending()
        self._tables.register(message)

    def add_statement(self, payloads: Mapping[str, bytes]) -> None:
        """Add a DDL statement's payloads by table; they precede the next row, as schema rows do."""
        transaction, position = self._open_place()
        self._framed.append(frames.build_statement_rows(payloads, position, transaction))

    def add_watermark(self, reader: int, value: str) -> None:
        """Add a watermark that the log has as a message, not as a row; its transaction has nothing else."""
        transaction, position = self._open_place()
        self._watermarks.append(WatermarkSeen(reader, value, position, transaction.txid, transaction.committed_at))

    def _open_place(self) -> tuple[frames.CarriedTransaction, Position]:
        """Frame what is before a message; return its transaction, and the position of the next row in that."""
        self.frame_pending()
        transaction = self.run.carried
        assert transaction is not None, "a transactional message comes after its Begin"
        return transaction, Position(self._incarnation, transaction.lsn, transaction.number * 2)

    def frame_pending(self) -> None:
        """Frame the run, in parts where a table's first row follows, or a row shows that its table has changed."""
        self.unframed_bytes = 0
        run, messages = self.run, frames.Messages.of(self.run.messages, self._tables)
        while (index := self._tables.first_unresolved(messages.numbers)) is not None:
            head, run = run.cut(index)
            head_messages, messages = messages.cut(index)
            self._frame(head, head_messages)
            self._resolve(int(messages.numbers[0]))
            run.carried = self.run.carried
        self._frame(run, messages)

    def _resolve(self, number: int) -> None:
        transaction = self.run.carried
        if transaction is None:
            raise SourceError("the log described a table outside a transaction", next_step="run capture again")
        schema = self._tables.resolve(number)
        if schema:
            position = Position(self._incarnation, transaction.lsn, transaction.number * 2)
            self._framed.append(frames.build_schema_row(self._tables[number], position, transaction))

    def _frame(self, run: frames.MessageRun, messages: frames.Messages) -> None:
        """Frame a run; the next run begins inside the open transaction, if there is one."""
        transactions = run.transactions(self._near_txid)
        if len(transactions.lsn) == 0:
            if run.messages:
                raise SourceError("the log sent a row outside a transaction", next_step="run capture again")
            return
        rows, watermarks = frames.frame(
            messages, transactions, self._tables, self._incarnation, self._skip_to
        )
        self._watermarks.extend(watermarks)
        self._rows += rows.num_rows
        is_followed = rows.num_rows > 0 and rows["lsn"][0].as_py() == transactions.lsn[0]
        if self._undecided is not None and (is_followed or not transactions.is_first_open):
            if not is_followed:
                self._framed[self._undecided] = frames.mark_last(self._framed[self._undecided])
            self._undecided = None
        whole, opened = (
            frames.split_last_transaction(rows, int(transactions.lsn[-1])) if run.open else (rows, rows.slice(0, 0))
        )
        self._framed.append(whole)
        if run.begins:
            self._open_start = len(self._framed)
        if opened.num_rows:
            self._framed += [opened.slice(0, opened.num_rows - 1), opened.slice(opened.num_rows - 1)]
            self._undecided = len(self._framed) - 1
        last = transactions.last()
        self._near_txid = last.txid
        self.run = frames.MessageRun(carried=last, open=True) if run.open else frames.MessageRun()

    def cut(self, *, inside: bool) -> LogPiece:
        """Remove and return all whole transactions; if ``inside``, also the open one without its undecided row."""
        self.frame_pending()
        transaction, landed = self.run.carried, None
        end, watermarks, later = len(self._framed), self._watermarks, list[WatermarkSeen]()
        if transaction is not None and inside:
            landed = self._framed_to(transaction)
            end = end if self._undecided is None else self._undecided
        elif transaction is not None:
            end = self._open_start
        if transaction is not None:
            # What is read again after this piece is not in it: a message, or the undecided row.
            of_open = [mark for mark in watermarks if mark.position.lsn == transaction.lsn]
            later = [mark for mark in of_open if landed is None or mark.position > landed]
            watermarks = watermarks[: len(watermarks) - len(later)]
        if self.committed is not None:
            self._token = lsn_text(pgoutput.parse_commit_end(self.committed))
            self.committed = None
        remaining = self._framed[end:]
        framed = [table for table in self._framed[:end] if table.num_rows]
        rows = pa.concat_tables(framed) if framed else frames.NO_ROWS
        remaining_bytes = sum(table["payload"].nbytes for table in remaining)
        reached = ResumePoint(self._incarnation, self._token, landed)
        rejected, self._tables.rejected = self._tables.rejected, {}
        partitions, self._tables.partitions = self._tables.partitions, {}
        piece = LogPiece(rows, reached, tuple(watermarks), self._bytes - remaining_bytes, rejected, partitions)
        self._framed, self._watermarks, self._open_start = remaining, later, 0
        self._undecided = None if self._undecided is None or self._undecided < end else self._undecided - end
        self._rows, self._bytes = sum(table.num_rows for table in remaining), remaining_bytes
        return piece

    def _framed_to(self, transaction: frames.CarriedTransaction) -> Position | None:
        """Return up to where the open transaction can be skipped once all rows before its undecided row have landed.

        This includes rows that are not captured, and rows that had landed when the stream was opened.
        """
        end = transaction.number * 2 if self._undecided is None else self._framed[self._undecided]["seq"][0].as_py()
        framed = Position(self._incarnation, transaction.lsn, end - 1) if end else None
        skipped = self._skip_to
        if skipped is None or (skipped.incarnation, skipped.lsn) != (self._incarnation, transaction.lsn):
            return framed
        return skipped if framed is None else max(skipped, framed)
