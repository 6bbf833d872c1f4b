"""The verification ledger: one row for each chunk that was compared with state.

Place: beside the path; ``run`` appends, ``requests``, ``status`` and ``check`` read. Guarantee: a chunk has one row,
since each commit carries the landing batch up to which chunks are compared as its transaction identifier. A reading
of an output's target has one for each table. What is wrong
is stored as keys, never as values. Read and written through delta-rs, without a JVM.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import Application, commit_rows, newest_batch
from dblake.base.lake.query import query_rows, quoted
from dblake.base.lake.tables import add_missing_columns, create_table, has_table
from dblake.base.lake.verifications import VERIFICATIONS

MAX_LISTED_KEYS = 5000
"""Wrong keys of one kind that a row lists. A chunk with more is repaired by a dump of its whole table."""
COMPARED, REPEAT = "compared", "repeat"

KINDS = ("missing", "extra", "different")
"""How a row can be wrong."""

_ROUND = re.compile(r"(.+?)(?:\.(\d+)(k?)(r?))?")


@dataclass(frozen=True, slots=True)
class Round:
    """One reading of a table: ``keyed`` if only wrong keys were read, ``repaired`` if they had been dumped before."""

    verification_id: str
    number: int = 1
    keyed: bool = False
    repaired: bool = False

    @property
    def request_id(self) -> str:
        """The id of the request that capture carries out; that of round 1 is the verification's."""
        if self.number == 1:
            return self.verification_id
        return f"{self.verification_id}.{self.number}{'k' * self.keyed}{'r' * self.repaired}"

    @classmethod
    def parse(cls, request_id: str) -> Round:
        """Return the round of a request."""
        match = _ROUND.fullmatch(request_id)
        assert match, "any text matches"
        return cls(match[1], int(match[2] or 1), bool(match[3]), bool(match[4]))


@dataclass(frozen=True, slots=True)
class ChunkDifferences:
    """Wrong rows of a chunk: keys in the source only, in state only, in both but different; the last also by column.

    ``lossy`` counts values that the column's type cannot hold on either side: they are equal only in that.
    """

    missing: Sequence[str] = ()
    extra: Sequence[str] = ()
    different: Sequence[str] = ()
    columns: Mapping[str, int] = field(default_factory=dict)
    lossy: int = 0

    @property
    def count(self) -> int:
        """The number of wrong rows."""
        return len(self.missing) + len(self.extra) + len(self.different)


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """A compared chunk. ``repeat`` is why it could not be compared; then the counts are 0."""

    round: Round
    table: str
    chunk_id: str
    position: Position
    batch: int
    rows_compared: int = 0
    rows_skipped: int = 0
    key_from: str | None = None
    key_to: str | None = None
    differences: ChunkDifferences = ChunkDifferences()
    repaired: int = 0
    closing: bool = False
    sampled: bool = False
    repeat: str | None = None
    skipped_keys: Sequence[str] = ()
    output: str | None = None
    """The output whose target was compared with state; None: state was compared with the source."""
    counts: Mapping[str, int] | None = None
    """The numbers of wrong rows by kind, where not all of them are in ``differences``."""

    def as_row(self, at: datetime) -> dict[str, Any]:
        """Return a row of VERIFICATIONS."""
        names = ("table", "chunk_id", "key_from", "key_to", "rows_compared", "rows_skipped", "repaired", "closing",
                 "sampled", "batch")
        wrong = {name: getattr(self.differences, name) for name in KINDS}
        return {
            **{name: getattr(self, name) for name in names},
            **(self.counts or {name: len(keys) for name, keys in wrong.items()}),
            **{f"{name}_keys": list(keys[:MAX_LISTED_KEYS]) for name, keys in wrong.items()},
            "verification_id": self.round.verification_id, "round": self.round.number, "keyed": self.round.keyed,
            "incarnation": self.position.incarnation, "lsn": self.position.lsn,
            "columns": list(self.differences.columns.items()), "verified_at": at,
            "status": REPEAT if self.repeat else COMPARED, "reason": self.repeat,
            "skipped_keys": list(self.skipped_keys), "lossy": self.differences.lossy,
            "output": self.output,
        }


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """One reading of a table, as far as its chunks are compared; ``is_complete`` once the last one is.

    ``wrong`` has the listed wrong rows as pairs of kind and key, ``unlisted`` counts the others by kind.
    ``skipped_keys`` were wrong before and could not be compared. ``repeat`` is why the reading has to be done again.
    """

    round: int
    keyed: bool
    sampled: bool
    is_complete: bool
    chunks: int
    rows_compared: int
    rows_skipped: int
    missing: int
    extra: int
    different: int
    repaired: int
    lossy: int
    position: str
    verified_at: datetime
    wrong: frozenset[tuple[str, str]]
    unlisted: Mapping[str, int]
    skipped_keys: tuple[str, ...]
    repeat: str | None

    @property
    def differences(self) -> int:
        """The number of wrong rows."""
        return self.missing + self.extra + self.different


def done_batch(paths: Paths) -> int:
    """Return the landing batch up to which chunks are compared."""
    return newest_batch(paths.verifications, Application.verification(paths.source))


def append_results(paths: Paths, results: Iterable[ChunkResult], batch: int) -> None:
    """Append the results of all chunks up to ``batch``, once: nothing if another process has done so.

    Raises TableUnavailable if another process commits at the same time.
    """
    _append(paths, results, Application.verification(paths.source), batch)


def append_output_results(paths: Paths, output: str, results: Iterable[ChunkResult]) -> None:
    """Append the results of one reading of an output's target. Raises TableUnavailable as ``append_results``."""
    application = Application.output_verification(paths.source, output)
    _append(paths, results, application, time.time_ns() // 1_000_000)


def _append(paths: Paths, results: Iterable[ChunkResult], application: str, version: int) -> None:
    at = datetime.now(UTC)
    rows = pa.Table.from_pylist([result.as_row(at) for result in results], schema=VERIFICATIONS)
    with commit_lock(paths.verifications):
        if not has_table(paths.verifications):
            create_table(paths.verifications, VERIFICATIONS)
        add_missing_columns(paths.verifications, VERIFICATIONS)
        commit_rows(paths.verifications, application, version, rows)


def read_ledger(paths: Paths, verification_id: str, table: str) -> list[dict[str, Any]]:
    """Return a table's rows of one verification, in the order of landing."""
    return query_rows(
        paths.verifications, f"SELECT * FROM t WHERE verification_id = {quoted(verification_id)} "
                             f'AND "table" = {quoted(table)} ORDER BY round, batch',
    )


def read_rounds(paths: Paths, verification_id: str | None = None) -> dict[tuple[str, str], list[RoundSummary]]:
    """Return the rounds of one verification of state, or of all, by verification and table, oldest first."""
    where = "true" if verification_id is None else f"verification_id = '{verification_id}'"
    rows = query_rows(
        paths.verifications, f'SELECT * FROM t WHERE {where} ORDER BY verification_id, "table", round, batch'
    )
    grouped: dict[tuple[str, str], dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        if row.get("output") is not None:
            continue
        grouped.setdefault((row["verification_id"], row["table"]), {}).setdefault(row["round"], []).append(row)
    return {name: [summarize(part) for part in rounds.values()] for name, rounds in grouped.items()}


def newest_by_table(paths: Paths) -> dict[str, list[RoundSummary]]:
    """Return the rounds of each table's newest complete verification."""
    newest: dict[str, list[RoundSummary]] = {}
    for (_, table), rounds in sorted(read_rounds(paths).items()):
        if rounds[-1].is_complete and not rounds[-1].repeat:
            newest[table] = rounds
    return newest


def last_whole(rounds: Sequence[RoundSummary]) -> RoundSummary:
    """Return the newest reading that was not limited to keys."""
    return next(each for each in reversed(rounds) if not each.keyed)


def summarize(landed: Sequence[Mapping[str, Any]]) -> RoundSummary:
    """Return one reading of a table from its rows of VERIFICATIONS."""
    # A capture that died before it saved the last chunk's progress reads it again.
    rows = [row for row in landed if not row["closing"]] + [row for row in landed if row["closing"]][-1:]
    counts = {name: sum(row[name] for row in rows) for name in ("rows_compared", "rows_skipped", *KINDS, "repaired")}
    first, last, is_complete = rows[0], rows[-1], any(row["closing"] for row in rows)
    listed = {kind: [key for row in rows for key in row[f"{kind}_keys"]] for kind in KINDS}
    repeat = next((row["reason"] for row in rows if row["status"] == REPEAT), None)
    found_nothing = not (counts["rows_compared"] or any(listed.values()))
    if is_complete and not first["keyed"] and counts["rows_skipped"] and found_nothing:
        repeat = repeat or f"all {counts['rows_skipped']:,} rows changed after they were read"
    return RoundSummary(
        first["round"], first["keyed"], first["sampled"], is_complete,
        sum(not row["closing"] for row in rows), **counts, lossy=sum(row.get("lossy") or 0 for row in rows),
        position=f"{last['incarnation']}/{last['lsn']}",
        verified_at=max(row["verified_at"] for row in rows).astimezone(UTC),
        wrong=frozenset((kind, key) for kind, keys in listed.items() for key in keys),
        unlisted={kind: counts[kind] - len(keys) for kind, keys in listed.items()},
        skipped_keys=tuple(dict.fromkeys(key for row in rows for key in row.get("skipped_keys") or ())),
        repeat=repeat,
    )
