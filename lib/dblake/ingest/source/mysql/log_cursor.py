"""The position of a log stream: which file and offset it has read, and where it can be resumed.

Below ``transaction_state``, which decides when a position is one to resume at. Promises that offsets only rise within
a file, past 4 GiB as well, and that a resume position is always between two transactions.
"""

from __future__ import annotations

from dblake.base.core.log_places import binlog_number
from dblake.ingest.source.mysql.log_position import LogPosition, unwrap_offset


class LogCursor:
    """A stream's position. It resumes at ``resume`` and reads from offset ``begins`` of the same file on."""

    def __init__(self, source: str, resume: LogPosition, *, begins: int) -> None:
        self._source = source
        self.file = resume.file
        self.start = self.end = begins
        """Offsets of the event read last: where it begins, and where the next one does."""
        self.created = 0
        """When the server began the file, in seconds since 1970; 0 until its format description has been read."""
        self.file_lsn = binlog_number(resume.file, 0)
        self._skip_until = resume.offset
        self._resume = (resume.file, resume.offset, resume.created)
        self._has_exact_gtids = resume.is_exact

    @property
    def description(self) -> str:
        """The source and the position of the event read last, for error messages."""
        return f"source {self._source}: at {self.file}:{self.start} of the log"

    @property
    def is_skipping(self) -> bool:
        """True while events precede the position that the stream resumes at."""
        return self.end < self._skip_until

    def advance(self, size: int, end: int) -> bool:
        """Move behind an event of ``size`` bytes that ends at ``end`` (32 bits). False if it is to be skipped."""
        self.end = end = end if end >= self.end else unwrap_offset(end, self.end)
        self.start = start = end - size
        return start >= self._skip_until

    def jump(self, start: int, end: int) -> None:
        """Move behind events that were read together; the last one of them begins at ``start``."""
        self.start, self.end = start, end

    def rotate(self, file: str, offset: int) -> None:
        """Move to an offset of a file, of the next one or of the one that the stream is in."""
        if file != self.file:
            self.file, self.end, self._skip_until, self.created = file, offset, 0, 0
            self.file_lsn = binlog_number(file, 0)
        self.start = offset

    def describe_file(self, created: int, end: int) -> None:
        """Note the file's creation time. ``end`` (32 bits) is 0 if the server sent the description out of turn."""
        self.created = created
        if end:
            self.end = unwrap_offset(end, self.end)

    def mark_resumable(self) -> None:
        """Make the current end the position to resume at."""
        self._resume = (self.file, self.end, self.created)

    def confirm_start(self) -> None:
        """Complete the start with the file's creation time, so that the stream can be resumed there."""
        self._resume = (*self._resume[:2], self.created)

    def lose_gtids(self) -> None:
        """Note a transaction without a GTID: from here on GTIDs do not name all transactions of the log."""
        self._has_exact_gtids = False

    def token(self, gtids: str) -> str:
        """Return the resume token, with the GTIDs executed up to there."""
        return LogPosition(*self._resume, gtids, self._has_exact_gtids).token
