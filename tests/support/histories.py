"""Random histories of a database that behaves like PostgreSQL, and the landing that a capture makes of them.

With ``minimal`` it behaves like MySQL with minimal row images: a commit is visible once it is logged, a chunk records
no snapshot, and an update carries its key and the changed columns alone. With ``moving`` most updates change the key,
and few transactions truncate or delete. With ``promoted`` every crash is that of the server, too: another one, with
positions of its own, continues the log, without the transactions that were open.

The histories contain all behavior that can break chunk windows: transactions that straddle watermarks, transaction ids
out of commit order, commits that are logged before they are visible (their rows stay locked until then) and snapshots
that miss them, key changes, updates that omit an unchanged value, truncates, captures that crash and leave orphaned
chunks, two concurrent readers, dumps of single keys, rows that vanish from the log before their table is dumped, schema
changes (add, drop, rename, widen), and batches cut at any point.

A history is a list of steps, four small numbers each. A step that is impossible in the current state does nothing, so
every list, and every part of one, is a valid history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.landing.control import CLOSED, DISCARDED, ChunkEnd, DumpStart
from tests.model.dblog import ChunkRow, High, Key, Low, Moved
from tests.support.landed import SERVER, Change, LandedRecord

Step = tuple[int, int, int, int]
Row = dict[str, str | None]

_KEYS: dict[str, list[Key]] = {
    "plain": [("",), ("a",), ("A",), ('["a"',), ("é\t",), ("\\N",)],
    "pair": [("", ""), ("a", "b"), ('a","b', ""), ("a", 'b"'), ("b", "a"), ("ä", "\n")],
}
_WEIGHTS = {"write": 10, "commit": 6, "rollback": 1, "reveal": 4, "low": 5, "read": 5, "high": 5, "ship": 5,
            "arrive": 3, "cut": 3, "crash": 1, "lose": 3, "alter": 2}
_STEPS = [name for name, weight in _WEIGHTS.items() for _ in range(weight)]
BATCHES_A_LEASE = 3
"""Captures crash in every third batch, so that interleaved histories agree on the lease epoch of a batch."""

STEP_NUMBERS = (len(_STEPS), 12, 12, 12)

PHANTOM_GUARD_SEEDS = (405, 464, 616)
"""Seeds whose histories fail without the snapshot guard of phantoms; the seeds 0 to 199 do not detect its absence."""

MOVED_SEEDS = (142, 616, 685, 933)
"""Seeds whose histories with ``moving`` have rows that change their keys in windows: also in chains, and back again."""


def random_steps(seed: int, length: int = 120) -> list[Step]:
    """Return the history of a seed."""
    random = Random(seed)
    return [
        (random.randrange(STEP_NUMBERS[0]), random.randrange(12), random.randrange(12), random.randrange(12))
        for _ in range(random.randrange(length // 2, length))
    ]


def tables(tag: str) -> dict[str, TableSchema]:
    """Return a table with a text key and one with a composite key; updates may omit the value of ``big``."""
    rest = (Column("v", "text"), Column("big", "text"))
    plain = TableSchema(f"{tag}.plain", (Column("id", "text", False, 1), *rest))
    # The key's order differs from the columns'.
    pair = TableSchema(f"{tag}.pair", (Column("k2", "text", False, 2), *rest, Column("k1", "text", False, 1)))
    return {table.table: table for table in (plain, pair)}


@dataclass
class _Txn:
    xid: int
    rows: dict[tuple[str, Key], Row | None] = field(default_factory=dict)
    truncated: set[str] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)


@dataclass
class _Chunk:
    chunk_id: str
    table: str
    dump_id: str
    keys: tuple[Key, ...] | None
    after: Key | None
    lease_epoch: int
    low: Position
    rows: list[ChunkRow] | None = None
    count: int = 0
    snapshot: str = ""
    schema: TableSchema | None = None
    end_key: Key | None = None
    first_batch: int | None = None
    discarded: str | None = None
    closes: DumpStart | None = None
    """On the chunk that completes a whole-table dump: the position at which the dump began."""


@dataclass(frozen=True)
class _Dump:
    """The unread part of a table: all of it or some keys, after the last chunk's key, or only the closing chunk."""

    table: str
    keys: tuple[Key, ...] | None = None
    after: Key | None = None
    began: DumpStart | None = None
    closing: bool = False


@dataclass
class _Mark:
    """A watermark transaction in the log."""

    kind: str
    chunk: _Chunk
    position: Position
    xid: int


@dataclass
class _Reader:
    dumps: list[_Dump]
    chunk: _Chunk | None = None


class World:
    """The simulated database, its log, a capture with two readers, and the landing so far."""

    def __init__(self, tag: str, *, minimal: bool = False, moving: bool = False, promoted: bool = False) -> None:
        self.tag, self.minimal, self.moving, self._promoted = tag, minimal, moving, promoted
        self.tables = tables(tag)
        """Each table's first schema by table name, later ones by schema id."""
        self._schemas = dict(self.tables)
        self._renamed: set[str] = set()
        self.added: set[str] = set()
        self._plain, self._pair = self.tables
        self._xid, self._lsn, self._value = 100, 0, 0
        self._last_completed = 100
        self._slots: list[_Txn | None] = [None, None, None]
        self._unseen: list[_Txn] = []
        self._log: list[Change | _Mark] = []
        self._chunks = 0
        self.visible: dict[tuple[str, Key], Row] = {}
        for table, keys in ((self._plain, _KEYS["plain"]), (self._pair, _KEYS["pair"])):
            for key in keys[::2] + keys[1:2]:
                self.visible[table, key] = self._row(table, key)
        dumps = [
            [_Dump(self._plain), _Dump(self._pair)],
            [_Dump(self._pair), _Dump(self._plain, (("a",), ("é\t",)))],
        ]
        self._readers = [_Reader(list(queue)) for queue in dumps]
        self.landing: list[LandedRecord] = []
        self._epoch, self._batch, self._shipped, self._doomed = 1, 1, 0, False
        self.incarnation = 1
        self._durable = (0, 0, [list(queue) for queue in dumps])
        self._landed_dumps = [list(queue) for queue in dumps]

    # -- the database ----------------------------------------------------------------------------------------------

    def _row(self, table: str, key: Key) -> Row:
        self._value += 2
        """Return a fresh row of the table's current schema."""
        names = self.tables[table].primary_key
        rest = [name for name in self._schemas[table].names if name not in names]
        row: Row = dict(zip(names, key, strict=True))
        return row | {name: f"{name}{self._value}" for name in rest}

    def _running(self) -> list[_Txn]:
        return [txn for txn in self._slots if txn] + self._unseen

    def _blocked(self, txn: _Txn, table: str, key: Key) -> bool:
        others = [other for other in self._running() if other is not txn]
        return any((table, key) in other.rows or table in other.truncated for other in others)

    def _sees(self, txn: _Txn, table: str, key: Key) -> Row | None:
        if (table, key) in txn.rows:
            return txn.rows[table, key]
        return None if table in txn.truncated else self.visible.get((table, key))

    def write(self, a: int, b: int, c: int) -> None:
        slot, table = a % 3, (self._plain, self._pair)[b % 2]
        keys = _KEYS["plain" if table == self._plain else "pair"]
        key, other, action = keys[c % 6], keys[(c + b // 2 + 1) % 6], (a // 3 + b + c) % 12
        if self.moving and action in (0, 3, 4, 5, 6, 11):
            action = 2
        txn = self._slots[slot] or _Txn(self._xid + 1)
        if self._blocked(txn, table, key):
            return
        row = self._sees(txn, table, key)
        change = Change(
            0, 0, Position(1, 0, len(txn.changes) * 2), txn.xid, table, "", schema_id=self._schemas[table].schema_id
        )
        if action == 11 and c % 3 == 0:
            if any(at[0] == table for other in self._running() if other is not txn for at in other.rows):
                return
            txn.truncated.add(table)
            txn.rows = {at: None if at[0] == table else row for at, row in txn.rows.items()}
            change = replace(change, op="t")
        elif row is None:
            made = self._row(table, key)
            if b == 3:
                made["big"] = None
            txn.rows[table, key] = made
            change = replace(change, op="c", key=key, after=made, whole=True)
        elif action in (0, 1):
            txn.rows[table, key] = None
            change = replace(change, op="d", key=key)
        else:
            new = self._row(table, key)
            if action < 8:
                new["big"] = row["big"]
            if self.minimal and action % 2:
                new["v"] = row["v"]
            unsent = set(new) - set(self.tables[table].primary_key) if self.minimal else {"big"}
            sent = {name: value for name, value in new.items() if name not in unsent or value != row.get(name)}
            change = replace(change, whole=len(sent) == len(new))
            if action in (2, 9) and not self._blocked(txn, table, other) and self._sees(txn, table, other) is None:
                names = self.tables[table].primary_key
                renamed: Row = dict(zip(names, other, strict=True))
                txn.rows[table, key], txn.rows[table, other] = None, new | renamed
                change = replace(change, op="u", key=other, old_key=key, after=sent | renamed)
            else:
                txn.rows[table, key] = new
                change = replace(change, op="u", key=key, after=sent)
        if self._slots[slot] is None:
            self._xid += 1
            self._slots[slot] = txn
        txn.changes.append(change)

    def commit(self, a: int, b: int, c: int) -> None:
        txn = self._slots[a % 3]
        if txn is None:
            return
        self._slots[a % 3] = None
        at = self._next_position()
        self._log += [replace(change, position=replace(at, seq=change.position.seq)) for change in txn.changes]
        self._unseen.append(txn)
        if b % 2 or self.minimal:
            self._reveal(txn)

    def rollback(self, a: int, b: int, c: int) -> None:
        txn = self._slots[a % 3]
        if txn is not None:
            self._slots[a % 3] = None
            self._last_completed = max(self._last_completed, txn.xid)

    def reveal(self, a: int, b: int, c: int) -> None:
        if self._unseen:
            self._reveal(self._unseen[a % len(self._unseen)])

    def _reveal(self, txn: _Txn) -> None:
        self._unseen.remove(txn)
        self._last_completed = max(self._last_completed, txn.xid)
        self.visible = {at: row for at, row in self.visible.items() if at[0] not in txn.truncated}
        for at, row in txn.rows.items():
            self.visible.pop(at, None)
            if row is not None:
                self.visible[at] = row

    def lose(self, a: int, b: int, c: int) -> None:
        """Remove a row without a log entry, as a log gap would; only before the table's dump begins."""
        table = (self._plain, self._pair)[b % 2]
        key = _KEYS["plain" if table == self._plain else "pair"][c % 6]
        begun = any(isinstance(entry, _Mark) and entry.chunk.table == table for entry in self._log)
        locked = any((table, key) in txn.rows or table in txn.truncated for txn in self._running())
        if not begun and not locked:
            self.visible.pop((table, key), None)

    def alter(self, a: int, b: int, c: int) -> None:
        """Add, drop, rename or widen a column, after all transactions that wrote to the table have ended."""
        table = (self._plain, self._pair)[b % 2]
        for txn in self._running():
            if table in txn.truncated or any(at[0] == table for at in txn.rows):
                if txn in self._slots:
                    self.commit(self._slots.index(txn), 1, 0)
                else:
                    self._reveal(txn)
        schema = self._schemas[table]
        own = [column for column in schema.columns if column.name in self.added]
        columns, moved = list(schema.columns), {name: name for name in schema.names}
        self._value += 2
        name = f"n{self._value}"
        if c % 4 == 0 or (c % 4 < 3 and not own):
            columns.append(Column(name, "character varying(9)"))
        elif c % 4 == 1:
            columns.remove(own[-1])
        elif c % 4 == 2:
            columns[columns.index(own[-1])] = replace(own[-1], name=name)
            moved[name] = own[-1].name
            self._renamed.add(table)
        else:
            columns = [replace(column, type="text") if column.type.startswith("char") else column for column in columns]
        self.added |= {name}
        self._schemas[table] = changed = TableSchema(table, tuple(columns))
        self.tables[changed.schema_id] = changed
        self.visible = {
            at: {name: row.get(moved.get(name, "")) for name in changed.names} if at[0] == table else row
            for at, row in self.visible.items()
        }

    def _next_position(self) -> Position:
        self._lsn += 10
        return Position(self.incarnation, self._lsn)

    def _snapshot(self) -> str:
        running = [txn.xid for txn in self._running()]
        xmax = self._last_completed + 1
        return f"{min([*running, xmax])}:{xmax}:{','.join(str(x) for x in sorted(running) if x < xmax)}"

    def _mark(self, kind: str, chunk: _Chunk) -> Position:
        # The watermark's own transaction is visible at once: no other transaction waits for it.
        self._xid += 1
        self._last_completed = max(self._last_completed, self._xid)
        mark = _Mark(kind, chunk, self._next_position(), self._xid)
        self._log.append(mark)
        return mark.position

    def _promote(self) -> None:
        """Continue on another server: it has the log, at other positions, and not the open transactions."""
        self.incarnation += 1
        for slot in range(3):
            self.rollback(slot, 0, 0)
        while self._unseen:
            self._reveal(self._unseen[0])
        self._lsn, places = 3, dict[Position, Position]()
        for number, entry in enumerate(self._log[self._shipped :], self._shipped):
            old = replace(entry.position, seq=0)
            if old not in places:
                places[old] = self._next_position()
            self._log[number] = replace(entry, position=replace(places[old], seq=entry.position.seq))

    # -- the capture -----------------------------------------------------------------------------------------------

    def low(self, a: int, b: int, c: int) -> None:
        number = a % 2
        reader = self._readers[number]
        if reader.chunk is None and reader.dumps:
            dump = reader.dumps[0]
            if dump.closing and self._landed_dumps[number] != reader.dumps:
                return
            self._chunks += 1
            chunk = _Chunk(
                f"{self.tag}-{self._chunks}", dump.table, f"{self.tag}-{number}", dump.keys, dump.after, self._epoch,
                Position(1, 0), closes=dump.began if dump.closing else None,
            )
            chunk.low = self._mark("low", chunk)
            reader.chunk = chunk

    def read(self, a: int, b: int, c: int) -> None:
        chunk = self._readers[a % 2].chunk
        if chunk is None or chunk.rows is not None or any(chunk.table in txn.truncated for txn in self._running()):
            return
        chunk.snapshot = "" if self.minimal else self._snapshot()
        chunk.schema = self._schemas[chunk.table]
        keys = sorted(
            key for table, key in self.visible
            if table == chunk.table and (chunk.after is None or key > chunk.after)
            and (chunk.keys is None or key in chunk.keys)
        )
        limit = 0 if chunk.closes else b % 3 + 1
        chunk.end_key = keys[limit - 1] if len(keys) > limit > 0 else None
        chunk.rows = [
            ChunkRow(0, chunk.lease_epoch, chunk.table, chunk.chunk_id, number, key, self.visible[chunk.table, key],
                     chunk.schema.schema_id)
            for number, key in enumerate(keys[:limit])
        ]
        chunk.count = len(chunk.rows)

    def high(self, a: int, b: int, c: int) -> None:
        reader = self._readers[a % 2]
        chunk = reader.chunk
        if chunk is None or chunk.rows is None:
            return
        self._mark("high", chunk)
        chunk.discarded = "tried" if b == 0 and c < 6 else self._other_schema(chunk)
        if not chunk.discarded:
            reader.dumps = _after(reader.dumps, chunk)
        reader.chunk = None

    def _other_schema(self, chunk: _Chunk) -> str | None:
        """Return why to discard a chunk: its window logs another schema than it was read under. None to keep it."""
        assert chunk.schema is not None
        logged, inside = self.tables[chunk.table].schema_id, None
        for entry in self._log:
            if isinstance(entry, Change) and entry.table == chunk.table and entry.schema_id != logged:
                logged = entry.schema_id
                inside = logged if entry.position > chunk.low else None
        return "schema changed in the window" if inside not in (None, chunk.schema.schema_id) else None

    def arrive(self, a: int, b: int, c: int) -> None:
        chunk = self._readers[a % 2].chunk
        if chunk is not None and chunk.rows:
            self._arrive(chunk, b % 3 + 1)

    def _arrive(self, chunk: _Chunk, count: int) -> None:
        rows, chunk.rows = (chunk.rows or [])[:count], (chunk.rows or [])[count:]
        self.landing += [replace(row, batch=self._batch) for row in rows]
        if rows:
            chunk.first_batch = chunk.first_batch or self._batch

    def ship(self, a: int, b: int, c: int) -> None:
        for entry in self._log[self._shipped : self._shipped + 2 * a + 1]:
            self._shipped += 1
            if isinstance(entry, Change):
                self.landing.append(replace(entry, batch=self._batch, lease_epoch=self._epoch))
            elif entry.chunk.lease_epoch == self._epoch:
                self._land_mark(entry)

    def _land_mark(self, mark: _Mark) -> None:
        chunk, at = mark.chunk, mark.position
        if mark.kind == "high":
            self._arrive(chunk, chunk.count)
        chunk.first_batch = chunk.first_batch or self._batch
        if mark.kind == "low":
            self.landing.append(Low(self._batch, self._epoch, chunk.table, chunk.chunk_id, at))
            return
        assert chunk.schema is not None
        status = DISCARDED if chunk.discarded else CLOSED
        end = ChunkEnd(chunk.dump_id, 0, chunk.low.lsn, 0, chunk.schema.schema_id, chunk.count,
                       chunk.first_batch, chunk.snapshot, status, chunk.discarded, chunk.closes)
        self.landing.append(High(self._batch, self._epoch, chunk.table, chunk.chunk_id, at, mark.xid, end))
        if not chunk.discarded:
            number = int(chunk.dump_id.rpartition("-")[2])
            self._landed_dumps[number] = _after(self._landed_dumps[number], chunk)

    def cut(self, a: int, b: int, c: int) -> None:
        self._cut()

    def _cut(self) -> None:
        if self._doomed:
            self._crash()
        elif self.landing and self.landing[-1].batch == self._batch:
            self._batch += 1
            self._durable = (len(self.landing), self._shipped, [list(d) for d in self._landed_dumps])
            self._doomed = self._batch % BATCHES_A_LEASE == 0

    def crash(self, a: int, b: int, c: int) -> None:
        if self._doomed:
            self._crash()

    def _crash(self) -> None:
        """Discard the open batch; the next capture resumes after the last landed one, with a new lease epoch."""
        landed, self._shipped, dumps = self._durable
        del self.landing[landed:]
        self._landed_dumps = [list(queue) for queue in dumps]
        for reader, queue in zip(self._readers, dumps, strict=True):
            reader.chunk, reader.dumps = None, list(queue)
        self._epoch += 1
        self._doomed = False
        if self._promoted:
            self._promote()
            self.landing.append(Moved(self._batch, self._epoch, self.incarnation, SERVER))

    def finish(self) -> None:
        """Complete the history: end and reveal all transactions, finish all dumps, land all of the log.

        Then dump every table with a renamed column again, because the log does not contain a rename's values.
        """
        for slot in range(3):
            self.commit(slot, 1, 0)
        while self._unseen:
            self.reveal(0, 0, 0)
        self.crash(0, 0, 0)
        self._dump_all()
        redumps = [_Dump(table) for table in sorted(self._renamed)]
        self._readers[0].dumps, self._landed_dumps[0] = list(redumps), list(redumps)
        self._dump_all()
        self._cut()

    def _dump_all(self) -> None:
        for number, reader in enumerate(self._readers):
            while reader.dumps or reader.chunk:
                for step in (self.low, self.read, self.high):
                    step(number, 1, 6)
                self.ship(len(self._log), 1, 0)
        self.ship(len(self._log), 1, 0)


def _after(dumps: list[_Dump], chunk: _Chunk) -> list[_Dump]:
    """Return the dumps that remain after a chunk."""
    dump, *rest = dumps
    began = DumpStart(chunk.low.incarnation, chunk.low.lsn, 0, chunk.snapshot)
    began = dump.began.and_chunk(began) if dump.began else began
    if chunk.end_key is not None:
        return [replace(dump, after=chunk.end_key, began=began), *rest]
    whole = dump.keys is None and not dump.closing
    return [replace(dump, closing=True, began=began), *rest] if whole else rest


def play(
    steps: Iterable[Step], tag: str = "h", *, minimal: bool = False, moving: bool = False, promoted: bool = False
) -> World:
    """Play the steps and complete the history; return the resulting world."""
    world = World(tag, minimal=minimal, moving=moving, promoted=promoted)
    for kind, a, b, c in steps:
        getattr(world, _STEPS[kind % len(_STEPS)])(a, b, c)
    world.finish()
    return world


def interleave_landings(worlds: Sequence[World]) -> list[LandedRecord]:
    """Merge the landings of many histories into one, ordered by batch. An incarnation begins once, with its batch."""
    records = sorted(
        (record for world in worlds for record in world.landing),
        key=lambda record: (record.batch, not isinstance(record, Moved)),
    )
    begun: set[int] = set()
    kept: list[LandedRecord] = []
    for record in records:
        if not (isinstance(record, Moved) and record.incarnation in begun):
            kept.append(record)
        begun |= {record.incarnation} if isinstance(record, Moved) else set()
    return kept
