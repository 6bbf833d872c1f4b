"""Every error a user can meet, with the exit code and the next step it stands for.

::

    DblakeError
    ├── UsageError            64  the command line makes no sense
    ├── ConfigError           78  a configuration key is missing, unknown or impossible
    ├── SourceError           75  the database did not answer as it should; try again
    │   ├── PrerequisitesNotMet  78  all that must be mended at the source, at once
    │   ├── PositionLost      78  the log no longer holds where capture must resume
    │   ├── WrongServer       78  the server is not the one landing was captured from
    │   └── Unsupported 78  a table or log event that is refused by name
    ├── LandingError          78  the landing table cannot be read or written
    │   ├── LandingUnavailable 75  a commit failed for a reason that may pass
    │   └── Fenced            75  another capture holds the lease or has written since
    ├── ProgressUnavailable   75  the progress directory or ZooKeeper fails for a reason that may pass
    ├── TableUnavailable      75  a table cannot be committed to for a reason that may pass
    ├── ReconcileError        70  landing breaks a promise capture gives
    │   ├── LandingGap        78  batches are missing between the last one done and the next one found
    │   ├── SupersededByRedecode      75  events were decoded again beside this run of reconcile
    │   └── WindowInvariantViolated 70  a chunk window contradicts itself
    ├── StateError            78  a state table cannot take the events
    │   └── IncompatibleSchemaChange       78  its table changed so that rows of before and after have no shape in common
    └── ChecksFailed          65  a check found rows that are not as they must be

A message says what happened, where (source, table, chunk, position) and the next step. It never holds row values,
SQL text or connection strings.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a job's exit code tells its scheduler (sysexits.h numbers)."""

    DONE = 0
    USAGE = 64
    WRONG_DATA = 65
    BUG = 70
    TRY_AGAIN = 75
    CONFIGURATION = 78


class DblakeError(Exception):
    """Base of all errors raised on purpose. ``next_step`` is an imperative sentence for the person reading it."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, what: str, *, next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step

    @property
    def retryable(self) -> bool:
        """True if running the same command again may succeed without anybody doing anything."""
        return self.exit_code is ExitCode.TRY_AGAIN

    def __str__(self) -> str:
        return f"{self.what}. Next: {self.next_step}" if self.next_step else self.what


class UsageError(DblakeError):
    """The command line makes no sense."""

    exit_code = ExitCode.USAGE


class ConfigError(DblakeError):
    """A configuration key is missing, unknown or impossible; the message names the key."""

    exit_code = ExitCode.CONFIGURATION


class SourceError(DblakeError):
    """The database did not answer as it should; trying again may help."""

    exit_code = ExitCode.TRY_AGAIN


class PrerequisitesNotMet(SourceError):
    """Everything that must be mended at the source, at once."""

    exit_code = ExitCode.CONFIGURATION


class UncapturableEvent(SourceError):
    """The log has something at this place that cannot be captured, and whoever runs capture accepts to leave it out."""

    exit_code = ExitCode.CONFIGURATION


class PositionLost(SourceError):
    """The database's log no longer holds the place where capture must resume: a gap."""

    exit_code = ExitCode.CONFIGURATION


ACCEPT_GAP = "capture --accept-gap starts a new incarnation and dumps all tables again"
"""The next step after a PositionLost that nothing else mends."""


class WrongServer(SourceError):
    """The server that answers is not the one landing was captured from."""

    exit_code = ExitCode.CONFIGURATION


class Unsupported(SourceError):
    """A table, column or log event that dblake refuses by name instead of guessing."""

    exit_code = ExitCode.CONFIGURATION


class LandingError(DblakeError):
    """The landing table cannot be read or written."""

    exit_code = ExitCode.CONFIGURATION


class LandingUnavailable(LandingError):
    """A commit to landing failed for a reason that may pass: storage away, disk full."""

    exit_code = ExitCode.TRY_AGAIN


class Fenced(LandingError):
    """Another capture holds the lease, or has written to landing since this one last did."""

    exit_code = ExitCode.TRY_AGAIN


class ProgressUnavailable(DblakeError):
    """The progress directory or ZooKeeper fails for a reason that may pass: disk full, no ensemble majority."""

    exit_code = ExitCode.TRY_AGAIN


class TableUnavailable(DblakeError):
    """A table of ours cannot be committed to for a reason that may pass: its disk is full, or not ours to write to."""

    exit_code = ExitCode.TRY_AGAIN


class ReconcileError(DblakeError):
    """Landing breaks a promise that capture gives: a bug, or a table edited by hand."""


class LandingGap(ReconcileError):
    """Batch numbers are missing between the last batch reconciled and the next one found."""

    exit_code = ExitCode.CONFIGURATION


class SupersededByRedecode(ReconcileError):
    """Events were decoded again since this run of reconcile began; its own decoder may be the one of before."""

    exit_code = ExitCode.TRY_AGAIN


class WindowInvariantViolated(ReconcileError):
    """A chunk window contradicts itself (its high watermark before its low, its rows not all there)."""


class StateError(DblakeError):
    """A state table cannot take the events meant for it."""

    exit_code = ExitCode.CONFIGURATION


class IncompatibleSchemaChange(StateError):
    """A table changed its key or a type so that a state table cannot hold rows of before and after."""


class ChecksFailed(DblakeError):
    """A check found rows that are not as they must be; checking again changes nothing."""

    exit_code = ExitCode.WRONG_DATA
