"""The tail: landing batches that are not reconciled yet, decoded in this process and committed nowhere.

Place: beside reconcile, for live readings. Guarantee: the events are those that reconcile will append, up to a position
that ends a transaction, because both are the same micro-batch. The tail ends after about as many bytes of landing files
as its caller allows. It also ends before the end of a dump whose table has more bytes of events, because all their keys
would be read, and before a chunk, such as an imported one, whose window has more bytes of log from before the tail.
A tail that continues another one, in ``read_batches``, ends before the end of any whole dump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.arrays import take_rows
from dblake.base.core.errors import LandingGap
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import SchemaVersion
from dblake.serve.read.event_log import EventLog
from dblake.serve.read.small_files import merged_files
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.predicate import Predicate
from dblake.transform.reconcile.arrow_keys import ArrowKeyJoin
from dblake.transform.reconcile.batch_summary import LandingSurvey, survey
from dblake.transform.reconcile.earlier_rows import Beginnings
from dblake.transform.reconcile.keys import EventBounds
from dblake.transform.reconcile.known_keys import EventFiles, KnownSources, event_sources
from dblake.transform.reconcile.landing_files import LandingFiles
from dblake.transform.reconcile.microbatch import MicroBatch, NewBatches
from dblake.transform.reconcile.task import decode_events
from dblake.transform.reconcile.windows import Ending, parse_endings


@dataclass(frozen=True)
class Tail:
    """Decoded events in order, with the columns of EVENT_COLUMNS, and the schemas that landed with them.

    It has all events of the batches up to ``batch``. ``is_bounded`` is True if complete transactions that landed are
    missing at the end.
    """

    events: pa.Table
    schemas: tuple[SchemaVersion, ...]
    is_bounded: bool
    batch: int

    @property
    def position(self) -> Position | None:
        """The newest event's position."""
        if not self.events.num_rows:
            return None
        return Position(*(self.events[name][-1].as_py() for name in Position.COLUMNS))


def read_tail(
    paths: Paths, log: EventLog | None, schemas: Mapping[str, TableSchema], max_bytes: int
) -> Tail | None:
    """Decode the batches after those of ``log``; None if there are none.

    ``schemas`` are those known so far, by id. Raises LandingGap if landing lacks a batch.
    """
    landing = LandingFiles.find(paths.landing, paths.source)
    if landing is None:
        return None

    def is_small(ending: Ending) -> bool:
        return not log or log.estimate_bytes(Predicate(tables=(ending.row.table,))) <= max_bytes

    return _read(landing, log.batch if log else 0, schemas, max_bytes, _Ends(log, is_small))


def read_batches(
    landing: LandingFiles, done: int, schemas: Mapping[str, TableSchema], max_bytes: int, incarnation: int
) -> Tail | None:
    """Decode batches after ``done``, wherever events are, up to the end of an incarnation; None if there are none.

    They end before the end of a whole dump, which needs the keys of all events. Raises as ``read_tail``.
    """
    return _read(landing, done, schemas, max_bytes, _Ends(None, lambda _: False), incarnation)


def read_landed_schemas(landing: LandingFiles, first: int, last: int) -> tuple[SchemaVersion, ...]:
    """Return the schemas that landed in batches ``first`` to ``last``."""
    return _schemas(survey(landing.files(first, last), first, last))


@dataclass(frozen=True, slots=True)
class _Ends:
    """Ends of whole dumps: the events from before the tail, and whether the keys of a dump's table can be read."""

    log: EventLog | None
    can_read: Callable[[Ending], bool]


def _read(
    landing: LandingFiles, done: int, schemas: Mapping[str, TableSchema], max_bytes: int, ends: _Ends,
    incarnation: int = Position.MAX,
) -> Tail | None:
    """Decode batches after ``done``, as far as the bounds allow."""
    newest = landing.newest_batch
    if newest <= done:
        return None
    last = landing.portions(done + 1, newest, max_bytes)[0]
    with merged_files(landing.files(done + 1, last)) as files:
        new = survey(files, done + 1, last)
        later = (batch - 1 for batch, found in new.incarnations.items() if found > incarnation)
        end = min([_last_readable_batch(landing, new, done, last, max_bytes), *later])
        if end == done:
            return Tail(EVENT_COLUMNS.empty_table(), (), is_bounded=True, batch=done)
        if end < last:
            new = survey(files, done + 1, end)
        tail = _decode(landing, new, done, schemas, end, ends)
    return tail if end == newest else replace(tail, is_bounded=True)


def _last_readable_batch(landing: LandingFiles, new: LandingSurvey, done: int, last: int, max_bytes: int) -> int:
    """Return the batch before the first window whose log in batches up to ``done`` has more bytes; else ``last``.

    The window of an imported chunk begins at the position of its files, perhaps days ago.
    """
    sizes = dict[Position, int]()
    for ending in sorted(parse_endings(new.watermarks, landing.oldest_batch), key=lambda ending: ending.row.batch):
        window = ending.window
        if window and window.first_batch <= done:
            if window.low not in sizes:
                sizes[window.low] = sum(file.size for file in landing.files_in_windows([window], done))
            if sizes[window.low] > max_bytes:
                return ending.row.batch - 1
    return last


def _decode(
    landing: LandingFiles, new: LandingSurvey, done: int, schemas: Mapping[str, TableSchema], last: int, ends: _Ends
) -> Tail:
    """Decode the batches after ``done`` up to ``last``."""
    missing = sorted(set(range(done + 1, last + 1)) - new.epochs.keys())
    if missing:
        raise LandingGap(
            f"landing lacks batch {missing[0]}; events reach batch {done}",
            next_step="run reconcile, which lists all missing batches",
        )
    known = {**schemas, **{row.schema.schema_id: row.schema for row in new.schemas}}
    batches = NewBatches(new, done + 1, last, known, landing)
    with MicroBatch(batches, _LogKeys(ends.log), lambda _: ArrowKeyJoin()) as batch:
        plan = batch.plan()
        ended, cut = _readable_ends(batch.closing, ends)
        removals = batch.removals(plan, ended)
        decoded = pa.Table.from_batches(decode_events(batch.parts, plan), EVENT_COLUMNS)
    events = _ordered(pa.concat_tables([decoded, removals.events]) if removals else decoded)
    kept = events if cut is None else Predicate(until=_high(cut).end_of_previous_transaction).filter(events)
    kept = _complete(kept)
    left_out = [pc.min(events["batch"].slice(kept.num_rows)).as_py(), cut and cut.row.batch]
    complete = min([last, *(batch - 1 for batch in left_out if batch is not None)])
    return Tail(kept, _schemas(new), cut is not None, complete)


def _schemas(new: LandingSurvey) -> tuple[SchemaVersion, ...]:
    return tuple(
        SchemaVersion(row.batch, row.schema, Position(row.incarnation, row.lsn, row.seq)) for row in new.schemas
    )


class _LogKeys:
    """Keys known from the version of the events table that the tail follows."""

    def __init__(self, log: EventLog | None) -> None:
        self._log = log

    def tables_before(self, began: Beginnings, schemas: Iterable[TableSchema]) -> set[str]:  # noqa: ARG002 - a protocol's
        return set(began) if self._log else set()

    def sources(self, ended: Sequence[Ending], schemas: Mapping[str, TableSchema]) -> KnownSources:  # noqa: ARG002 - likewise
        files = [EventFiles(self._log.path, self._log.files_listed)] if self._log else []
        return event_sources(files, {ending.row.table: EventBounds() for ending in ended})


def _readable_ends(closing: Sequence[Ending], ends: _Ends) -> tuple[list[Ending], Ending | None]:
    """Return the windows before the first end of a dump whose keys cannot be read, and that end."""
    readable: list[Ending] = []
    for ending in sorted(closing, key=_high):
        if ending.end.dump_start and not ends.can_read(ending):
            return readable, ending
        readable.append(ending)
    return readable, None


def _high(ending: Ending) -> Position:
    return Position(ending.row.incarnation, ending.row.lsn, ending.row.seq)


def _ordered(rows: pa.Table) -> pa.Table:
    incarnation, lsn, seq = (rows[name].to_numpy() for name in Position.COLUMNS)
    return take_rows(rows, np.lexsort((seq, lsn, incarnation)))


def _complete(events: pa.Table) -> pa.Table:
    """Return the events of complete transactions."""
    of_log = events.filter(pc.equal(events["origin"], "log"))
    if of_log.num_rows:
        last = of_log.slice(of_log.num_rows - 1).to_pylist()[0]
        if not last["last_in_txn"]:
            at = Position(last["incarnation"], last["lsn"], last["seq"])
            events = Predicate(until=at.end_of_previous_transaction).filter(events)
    return events
