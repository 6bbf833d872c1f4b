"""What an action of an operator acts on, and how an action is declared."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import psycopg2
import pymysql

from tests.support.operations.databases import MARKER, OperatedDatabase
from tests.support.operations.ddl import PARTITIONED
from tests.support.operations.load import RandomWriters
from tests.support.operations.system import LiveSystem

DatabaseErrors = (psycopg2.Error, pymysql.Error)


@dataclass(slots=True)
class Scene:
    """What an action acts on, and its source of chance. ``fault`` is what the action itself found to be wrong."""

    system: LiveSystem
    database: OperatedDatabase
    writers: RandomWriters
    dice: random.Random
    fault: str = ""

    def tables(self, *, plain: bool = False) -> list[str]:
        """Return the tables that actions may change; ``plain`` ones have no partitions."""
        return [
            table for table in self.database.tables() if table != MARKER and not (plain and table == PARTITIONED)
        ]

    def table(self, *, plain: bool = False) -> str:
        """Return a random one of these tables."""
        return self.dice.choice(self.tables(plain=plain))

    def keyed_table(self) -> str | None:
        """Return a random plain table with a primary key; None without one."""
        keyed = [table for table in self.tables(plain=True) if self.database.key(table)]
        return self.dice.choice(keyed) if keyed else None

    def pause(self, most: float = 1.5) -> None:
        """Wait for a random time, shorter or longer than capture's heartbeat."""
        self.system.wait(self.dice.uniform(0, most))

    def try_to_run(self, *statements: str) -> bool:
        """Run statements; return False if the database refuses one."""
        try:
            self.database.run(*statements)
        except DatabaseErrors:
            return False
        return True

    def note(self, fault: str) -> None:
        """Keep the first thing that is wrong; an empty text is none."""
        self.fault = self.fault or fault

    def restart_capture(self) -> None:
        """Stop capture by SIGTERM and start it."""
        self.fault = self.fault or self.system.stop_capture()
        self.system.start_capture()


@dataclass(frozen=True, slots=True)
class Action:
    """A kind of operation. ``weight`` is its share among the rounds."""

    name: str
    run: Callable[[Scene], str]
    ends: frozenset[int] = frozenset()
    weight: int = 1
