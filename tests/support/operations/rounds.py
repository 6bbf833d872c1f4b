"""Rounds of a random operator: one action on the live system, then every table equals the source or is named.

After each action, writers pause and capture has to catch up within a bounded time. Where rows of state name values that
the log did not send (a minimal row image that changes the key), the operator dumps the table, as the runbook advises.
A table counts as named if ``status --json`` has a problem of it that does not pass without an operator: suspended,
incomplete, or left behind by state. A round fails if a table differs and is not named, if one that does not exist is
still called followed, or if a process ends in a way that the action does not explain.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from dblake.base.lake.tables import has_table
from tests.support.operations.actions import actions
from tests.support.operations.databases import MARKER, SCHEMA, OperatedDatabase, operated_database
from tests.support.operations.ddl import create_partitioned, create_table
from tests.support.operations.load import RandomWriters
from tests.support.operations.scene import Action, DatabaseErrors, Scene
from tests.support.operations.system import LiveSystem

CATCH_UP_SECONDS = 60.0
_BATCH_ROWS = 300
"""Rows of a landing batch: larger transactions land in several."""
_NAMED = frozenset({"suspended", "incomplete", "state_behind"})
_PASSING = frozenset({"pending", "rewritten"})
_REPAIR_SHARE = 0.5
Texts = tuple[str | None, ...]
"""A row's canonical texts, in the order of the source's columns."""
_FRACTION = re.compile(r"(\.\d*?)0+$")


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did and how it ended: equal, named, or failed."""

    number: int
    action: str
    did: str
    outcome: str
    named: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    ends: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.number:3} {self.action:11} {self.outcome:6} {self.seconds:5.1f} s  {self.did}"]
        if self.ends:
            parts.append(f"capture ended with {', '.join(f'{code} ({n})' for code, n in self.ends.items())}")
        parts += [f"{table} is named: {why}" for table, why in self.named.items()]
        return "\n      ".join([*parts, *self.faults])


@dataclass(slots=True)
class Comparison:
    """The tables that differ, each with its difference, and those that status names."""

    differs: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    passing: set[str] = field(default_factory=set)


class Rounds:
    """The rounds on one live system. ``only`` restricts the actions to some names."""

    def __init__(
        self, system: LiveSystem, database: OperatedDatabase, seed: int, only: tuple[str, ...] = ()
    ) -> None:
        self._system, self._database, self._dice = system, database, random.Random(seed)
        known = actions(database.kind)
        chosen = [known[name] for name in only] if only else list(known.values())
        self._actions = [action for action in chosen for _ in range(action.weight)]
        self._completed: set[str] = set()
        """Tables dumped in this round because state names values that the log did not send."""

    def run(self, rounds: int, report: Callable[[Round], None], writers: RandomWriters) -> list[Round]:
        """Run rounds; a table that differs is dumped, so that the next round begins with equal tables."""
        done = []
        for number in range(1, rounds + 1):
            one = self._run_round(number, self._dice.choice(self._actions), writers)
            report(one)
            done.append(one)
        return done

    def _run_round(self, number: int, action: Action, writers: RandomWriters) -> Round:
        began, scene = time.monotonic(), Scene(self._system, self._database, writers, self._dice)
        if self._dice.random() < _REPAIR_SHARE:
            self._repair(scene)
        faults, did = [], ""
        try:
            did = action.run(scene)
        except DatabaseErrors as error:
            did = f"refused by the database: {type(error).__name__} {str(error).strip().splitlines()[0]}"
        self._system.start_capture()
        with writers.paused():
            try:
                comparison = self._catch_up(number)
            except Exception as error:  # noqa: BLE001 - it is the round's result
                comparison = Comparison()
                faults.append(f"{type(error).__name__}: {error}")
        ends = self._system.take_ends()
        if scene.fault:
            faults.append(scene.fault)
        if unexpected := {code for code in ends if code not in action.ends}:
            faults.append(f"capture ended with {unexpected}: {self._system.last_words}")
        faults += [f"{table} differs: {difference}" for table, difference in comparison.differs.items()]
        if comparison.differs:
            self._recover(sorted(comparison.differs))
        outcome = "failed" if faults else "named" if comparison.named else "equal"
        return Round(number, action.name, did, outcome, comparison.named, tuple(faults), ends,
                     time.monotonic() - began)

    def _repair(self, scene: Scene) -> None:
        """Do what preflight advises: prepare the database again; replace a table that is still named."""
        database = self._database
        with scene.writers.paused():
            database.prepare()
        named = [table for table in self._compare_names().named if table in database.tables()]
        if named and self._dice.random() < _REPAIR_SHARE:
            table = self._dice.choice(named)
            scene.try_to_run(f"DROP TABLE {SCHEMA}.{table}", create_table(database.kind, table))
            scene.try_to_run(*create_partitioned(database.kind))
            database.prepare()

    def _recover(self, tables: list[str]) -> None:
        """Dump tables that differ, so that a later round does not report them again."""
        self._system.dump([table for table in tables if table in self._database.tables()])

    def _catch_up(self, number: int) -> Comparison:
        """Wait until all tables are equal or named, for a bounded time; return what is then the case."""
        database, deadline = self._database, time.monotonic() + CATCH_UP_SECONDS
        self._completed.clear()
        database.run(f"UPDATE {SCHEMA}.{MARKER} SET n = {number} WHERE id = 1")
        while True:
            self._system.supervise()
            failure = self._system.advance()
            comparison = self._compare()
            if not (failure or comparison.differs or comparison.passing):
                return comparison
            if time.monotonic() > deadline:
                comparison.differs |= {table: "it is still pending" for table in comparison.passing
                                       if table not in comparison.differs}
                if failure:
                    comparison.differs["events"] = failure
                return comparison
            self._system.wait(0.5)

    def _complete(self, table: str) -> None:
        """Dump a table whose rows name values that the log did not send, as the runbook advises; once a round."""
        if table not in self._completed:
            self._completed.add(table)
            self._system.dump([table])

    def _compare_names(self) -> Comparison:
        """Return what status names, without a comparison of rows."""
        comparison, status = Comparison(), self._system.status()
        for problem in status["problems"]:
            table = (problem["table"] or "").removeprefix(f"{SCHEMA}.")
            if problem["code"] in _NAMED:
                comparison.named[table] = f"{problem['code']}: {problem['detail']}"
            elif problem["code"] in _PASSING:
                comparison.passing.add(table)
        # Its rows are not current until an operator acts, whatever else is due.
        comparison.passing -= {problem["table"].removeprefix(f"{SCHEMA}.") for problem in status["problems"]
                               if problem["code"] in ("suspended", "incomplete")}
        comparison.passing |= {dump["table"].removeprefix(f"{SCHEMA}.") for dump in status["dumps"]
                               if dump["state"] in ("queued", "running")}
        tables = set(self._database.tables())
        for name, life in status["captured"].items():
            table = name.removeprefix(f"{SCHEMA}.")
            if table not in tables and life["state"] != "removed":
                comparison.differs[table] = f"it does not exist, and its state is {life['state']}"
        for table in tables - {name.removeprefix(f"{SCHEMA}.") for name in status["captured"]}:
            comparison.differs[table] = "status does not know it"
        return comparison

    def _compare(self) -> Comparison:
        comparison, database = self._compare_names(), self._database
        for table in database.tables():
            if table in comparison.named:
                continue
            source, state = database.rows(table), self._system.state_rows(table)
            if difference := find_difference(source, state):
                comparison.differs[table] = difference
            elif any(row["_missing"] for row in state or ()):
                self._complete(table)
                comparison.differs[table] = "rows name values in _missing, although the table was dumped"
        comparison.named.pop("", None)
        if MARKER in comparison.named:
            comparison.differs[MARKER] = f"every table may be captured, but {comparison.named.pop(MARKER)}"
        return comparison


def find_difference(source: list[dict[str, str | None]], state: list[dict[str, Any]] | None) -> str:
    """Return how a state table differs from its source, with examples; an empty text if it does not.

    A value that its row names in ``_missing`` does not count.
    """
    if state is None:
        return f"there is no state table for {len(source)} rows" if source else ""
    names = list(source[0]) if source else []
    if missing := [name for name in names if state and name not in state[0]]:
        return f"state lacks the columns {missing}"
    expected = Counter(tuple(canonical_text(row[name]) for name in names) for row in source)
    found = Counter(_completed(row, names, expected) for row in state)
    if expected == found:
        return ""
    lost, extra = list((expected - found).elements()), list((found - expected).elements())
    return f"{len(lost)} rows only in the source, {len(extra)} only in state, of {names}: {lost[:3]} {extra[:3]}"


def _completed(row: Mapping[str, Any], names: Sequence[str], source: Iterable[Texts]) -> Texts:
    """Return a row of state as texts, with the source's values where it names them in ``_missing``."""
    texts = tuple(canonical_text(row[name]) for name in names)
    if not row["_missing"]:
        return texts
    known = [place for place, name in enumerate(names) if name not in row["_missing"]]
    return next((one for one in source if all(one[place] == texts[place] for place in known)), texts)


def canonical_text(value: object) -> str | None:
    """Return a value of the source or of state as one text: numbers by value, times without trailing zeros."""
    if value is None:
        return None
    text = str(value)
    try:
        return str(Decimal(text).normalize() + 0)
    except InvalidOperation:
        text = text.removesuffix("+00:00").removesuffix(" 00:00:00")
        return _FRACTION.sub(r"\1", text).removesuffix(".") if ":" in text else text


def tally(rounds: list[Round]) -> dict[str, dict[str, int]]:
    """Return how often each action had each outcome."""
    counts: dict[str, dict[str, int]] = {}
    for one in rounds:
        outcomes = counts.setdefault(one.action, {"equal": 0, "named": 0, "failed": 0})
        outcomes[one.outcome] += 1
    return dict(sorted(counts.items()))


def run_rounds(
    kind: str, rounds: int, seed: int, report: Callable[[Round], None], *, only: tuple[str, ...] = (),
) -> tuple[list[Round], Path | None]:
    """Run rounds on an own server; return them, and the folder of a run with failed ones, which is kept."""
    folder = Path(tempfile.mkdtemp(prefix="dblake-operations-"))
    folder.chmod(0o755)
    with live_system(kind, folder, seed) as (system, database, writers):
        done = Rounds(system, database, seed, only).run(rounds, report, writers)
    if all(one.outcome != "failed" for one in done):
        shutil.rmtree(folder)
        return done, None
    return done, folder


@contextmanager
def live_system(
    kind: str, folder: Path, seed: int
) -> Iterator[tuple[LiveSystem, OperatedDatabase, RandomWriters]]:
    """Yield a running capture of some tables on an own server, with writers."""
    database = operated_database(kind, folder)
    try:
        hidden = ["CREATE SCHEMA hidden"] if kind == "postgres" else []
        database.run(
            *hidden, f"CREATE TABLE {SCHEMA}.{MARKER} (id int PRIMARY KEY, n int)",
            f"INSERT INTO {SCHEMA}.{MARKER} VALUES (1, 0)", *(create_table(kind, f"t{n}") for n in range(3)),
            *create_partitioned(kind),
        )
        for table in database.tables():
            if table != MARKER:
                database.run(f"INSERT INTO {SCHEMA}.{table} (id, n, s) VALUES "
                             + ", ".join(f"({key}, {key % 9}, 'first')" for key in range(1, 101)))
        database.prepare()
        system = LiveSystem(database, folder, max_rows=_BATCH_ROWS)
        with RandomWriters(database, seed) as writers:
            system.start_capture()
            try:
                # A capture that finds no table at its start ends.
                while not has_table(system.paths.landing):
                    system.wait(0.2)
                yield system, database, writers
            finally:
                system.close()
    finally:
        database.stop()
