"""Carry a verification through: its requests to capture, the comparison of what lands, repair, and the result.

Place: between the ``verify`` command and both halves; capture reads the tables, ``run`` compares. Guarantee: a
difference is reported only if a second reading of its key shows it, too, where keys can be reread; what ``repair`` has
changed is read again before it counts as repaired. A wrong key that changes while it is read is read again; one that
could never be compared again stays wrong. The first reading ends in the ledger also without this process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dblake.base.core.errors import CopyDiffers, PrerequisitesNotMet, TableUnavailable
from dblake.base.core.names import abbreviated
from dblake.base.lake.layout import Paths
from dblake.ingest.capture.dump_queue import dump_status, queue_dump, queue_verification
from dblake.ingest.capture.dump_task import DumpState, Key
from dblake.ingest.capture.progress import ProgressStore
from dblake.operate.verification.findings import WrongRows, find_wrong
from dblake.operate.verification.ledger import KINDS, Round, RoundSummary, last_whole, read_rounds
from dblake.operate.verification.run import comparable_batch, compare_landed

_KEYS_PRIORITY = 10
"""Given keys are few rows, and what they prove is out of date soon."""
_MAX_REPEATS = 10
_MAX_REREADS = 5
"""So often wrong keys are read once more because they changed while they were read."""
_REMOVE = (
    "rebuild the table's indexes at the source and verify it again; if the rows are gone there, "
    "verify --repair --remove --wait"
)
_POLL_SECONDS = 0.5
_REPORT_SECONDS = 15.0


@dataclass(slots=True)
class _TableVerification:
    """One table: the round that is being read, the dump that repairs it, and what was found before the repair.

    Its key has ``key_columns`` columns; None if rows cannot be requested by key: a key is masked, or a wrong key of
    state is no value of the column's type. ``failure`` is why the table as a whole could not be compared, ``refusal``
    why it is not repaired.
    """

    table: str
    round: Round
    key_columns: int | None
    repair_dump: str | None = None
    found: WrongRows | None = None
    repeats: int = 0
    rereads: int = 0
    failure: str | None = None
    refusal: str | None = None
    is_finished: bool = False


@dataclass(slots=True)
class Verification:
    """A queued verification: the number of each table's key columns, None if some are masked.

    ``sample`` is the share of key ranges that was requested, ``max_removed`` the share of a table's rows that its
    repair may delete; None is all.
    """

    paths: Paths
    store: ProgressStore
    id: str
    tables: Mapping[str, int | None]
    repair: bool = False
    sample: float = 1.0
    max_removed: float | None = None
    _states: dict[str, _TableVerification] = field(init=False)

    def __post_init__(self) -> None:
        self._states = {
            table: _TableVerification(table, Round(self.id), columns) for table, columns in self.tables.items()
        }

    @property
    def pending(self) -> list[str]:
        """The tables that are not verified yet."""
        return [state.table for state in self._states.values() if not state.is_finished]

    @property
    def repeated(self) -> list[str]:
        """The pending tables that are read again because their last reading could not be compared."""
        return [state.table for state in self._states.values() if not state.is_finished and state.repeats]

    def advance(self) -> bool:
        """Compare what can be compared, and queue what follows from it; return True once all tables are verified.

        Raises PrerequisitesNotMet if a table cannot be read.
        """
        compare_landed(self.paths)
        rounds = read_rounds(self.paths, self.id)
        progress = {(entry["id"], entry["table"]): entry for entry in dump_status(self.store, verifications=True)}
        for state in self._states.values():
            if not state.is_finished:
                entry = progress.get((state.round.request_id, state.table))
                if entry and entry["state"] == DumpState.FAILED and state.round.keyed:
                    state.key_columns = None
                    self._read_again(state, None, repaired=state.round.repaired)
                    continue
                _require_readable(entry)
                self._advance_table(state, rounds.get((self.id, state.table), []))
        return not self.pending

    def wait(self, show: Callable[[str], None]) -> None:
        """Advance until all tables are verified, and ``show`` what that waits for; raise as ``advance`` does."""
        shown, shown_at = "", time.monotonic()
        while not self.advance():
            waiting = self.describe_waiting()
            if waiting != shown and time.monotonic() - shown_at > _REPORT_SECONDS:
                shown, shown_at = waiting, time.monotonic()
                show(waiting)
            time.sleep(_POLL_SECONDS)

    def describe_waiting(self) -> str:
        """Return what the verification waits for."""
        requests = {entry["id"]: entry["state"] for entry in dump_status(self.store, verifications=True)}
        requests |= {entry["id"]: entry["state"] for entry in dump_status(self.store)}
        unread = [
            state.table for state in self._states.values() if not state.is_finished
            and requests.get(state.repair_dump or state.round.request_id) != DumpState.DONE
        ]
        if unread:
            return f"waiting for capture to read {abbreviated(unread)}"
        return f"waiting for reconcile and state, which have reached batch {comparable_batch(self.paths)}"

    def results(self) -> list[dict[str, Any]]:
        """Return one object per table, with the keys that ``verify --json`` prints."""
        rounds = read_rounds(self.paths, self.id)
        return [self._result(state, rounds[self.id, state.table]) for state in self._states.values()]

    def remaining(self) -> int:
        """Return the number of rows that differ still."""
        return sum(finding.count for finding in self._findings())

    def require_equal(self) -> None:
        """Raise CopyDiffers if rows differ still, TableUnavailable if a table could not be compared."""
        findings = self._findings()
        if remaining := sum(finding.count for finding in findings):
            skipped = sum(len(finding.skipped) for finding in findings)
            unsettled = f"; {skipped:,} of them changed each time they were read again" if skipped else ""
            refusals = [state.refusal for state in self._states.values() if state.refusal]
            raise CopyDiffers(
                "; ".join([f"{remaining:,} rows of state differ from the source{unsettled}", *refusals]),
                next_step=_REMOVE if refusals else "verify --repair --wait; dblake.verifications has their keys",
            )
        failures = {state.table: state.failure for state in self._states.values() if state.failure}
        if failures:
            causes = "; ".join(f"{table}: {why}" for table, why in failures.items())
            raise TableUnavailable(
                f"{len(failures)} of {len(self._states)} tables could not be verified in {_MAX_REPEATS} readings: "
                f"{causes}",
                next_step="verify them again when fewer of their rows change, or with a smaller dump.chunk_size",
            )

    def _findings(self) -> list[WrongRows]:
        rounds = read_rounds(self.paths, self.id)
        return [find_wrong(rounds[self.id, table]) for table in self._states]

    def _advance_table(self, state: _TableVerification, rounds: Sequence[RoundSummary]) -> None:
        if state.repair_dump is not None:
            self._verify_after_repair(state)
            return
        current = next((each for each in rounds if each.round == state.round.number), None)
        if current is None or not current.is_complete:
            return
        finding, repaired = find_wrong(rounds), state.round.repaired
        if current.repeat:
            state.repeats += 1
            if state.repeats > _MAX_REPEATS:
                state.failure, state.is_finished = current.repeat, True
            else:
                self._read_again(state, None, repaired=repaired)
        elif not finding.count:
            state.is_finished = True
        elif finding.skipped and state.rereads < _MAX_REREADS:
            state.rereads += 1
            self._read_again(state, self._parse(state, finding), repaired=repaired)
        elif not current.keyed and not repaired and (keys := self._parse(state, finding)):
            self._read_again(state, keys, repaired=False)
        elif self.repair and not repaired:
            state.refusal = self._refuse(state.table, finding, last_whole(rounds))
            if state.refusal:
                state.is_finished = True
            else:
                state.found, state.rereads = finding, 0
                self._dump_again(state)
        else:
            state.is_finished = True

    def _refuse(self, table: str, finding: WrongRows, whole: RoundSummary) -> str | None:
        """Return why a repair would delete too much; None if it does not."""
        extra = finding.count_kind("extra")
        rows = whole.rows_compared + whole.rows_skipped - finding.count_kind("missing") + extra
        if self.max_removed is None or extra <= self.max_removed * rows:
            return None
        return (f"table {table} is not repaired: that would delete {extra:,} of {rows:,} rows, more than the share "
                f"dump.max_removed, {self.max_removed:g}")

    def _verify_after_repair(self, state: _TableVerification) -> None:
        dumps = {(entry["id"], entry["table"]): entry for entry in dump_status(self.store)}
        dump = dumps.get((state.repair_dump or "", state.table))
        if dump and dump["state"] == DumpState.FAILED and state.key_columns is not None:
            state.key_columns = None
            self._dump_again(state)
            return
        _require_readable(dump)
        if dump and dump["state"] == DumpState.DONE:
            state.repair_dump = None
            self._read_again(state, self._parse(state, state.found), repaired=True)

    def _dump_again(self, state: _TableVerification) -> None:
        keys = self._parse(state, state.found)
        state.repair_dump = queue_dump(
            self.store, [state.table], keys, removes=keys is not None, priority=0 if keys is None else _KEYS_PRIORITY,
            max_removed=self.max_removed if keys is None else None,
        )

    def _read_again(self, state: _TableVerification, keys: list[Key] | None, *, repaired: bool) -> None:
        state.round = Round(self.id, state.round.number + 1, keys is not None, repaired)
        # After a repair another choice of ranges would not show what it has repaired.
        sample = self.sample if keys is None and not repaired else 1.0
        queue_verification(
            self.store, [state.table], keys, sample=sample, verification_id=state.round.request_id,
            priority=0 if keys is None else _KEYS_PRIORITY,
        )

    def _parse(self, state: _TableVerification, found: WrongRows | None) -> list[Key] | None:
        """Return wrong keys as capture requests them; None if the whole table has to be read instead."""
        if found is None or found.keys is None or state.key_columns is None:
            return None
        return [(key,) if state.key_columns == 1 else tuple(json.loads(key)) for key in found.keys]

    def _result(self, state: _TableVerification, rounds: Sequence[RoundSummary]) -> dict[str, Any]:
        whole, last, remaining = last_whole(rounds), rounds[-1], find_wrong(rounds)
        found = state.found or remaining
        return {
            "table": state.table, "chunks": whole.chunks, "rows_compared": whole.rows_compared,
            "rows_skipped": whole.rows_skipped, "lossy": whole.lossy,
            **{kind: found.count_kind(kind) for kind in KINDS},
            "repaired": max(found.count - remaining.count, 0) if state.found else 0,
            "position": last.position, "verified_at": last.verified_at.isoformat(timespec="seconds"),
        }


def _require_readable(entry: Mapping[str, Any] | None) -> None:
    if entry and entry["state"] in (DumpState.FAILED, DumpState.CANCELLED):
        raise PrerequisitesNotMet(
            f"table {entry['table']} was not read: {entry['error'] or entry['state']}",
            next_step="remove the cause, then verify the table again",
        )
