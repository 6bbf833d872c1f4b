"""The log cut anywhere: however small the pieces, and wherever a stream is opened again, every row comes once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from dblake.base.core.errors import SourceError
from dblake.base.core.position import ResumePoint
from dblake.ingest.source.postgres import log
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.log import PgLogStream
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.source import PostgresSource
from dblake.landing.columns import SCHEMA
from tests.support.postgres import Database

# Whole transactions: a and b are captured, c is in the publication only.
STATEMENTS = (
    "INSERT INTO a VALUES (1)",
    "INSERT INTO a VALUES (2), (3)",
    "INSERT INTO c VALUES (1); INSERT INTO a VALUES (4)",
    "INSERT INTO a VALUES (5); INSERT INTO c VALUES (2)",
    "INSERT INTO c VALUES (3)",
    "INSERT INTO a VALUES (6); INSERT INTO b VALUES (1)",
    "UPDATE a SET id = id + 10",
    "TRUNCATE b, c",
    "DELETE FROM a WHERE id > 14",
    "INSERT INTO b VALUES (9)",
)
ROWS = [  # kind, table, last of its transaction
    ("row", "public.a", True),
    ("row", "public.a", False), ("row", "public.a", True),
    ("row", "public.a", True),
    ("row", "public.a", True),
    ("row", "public.a", False), ("row", "public.b", True),
    *[("row", "public.a", False)] * 5, ("row", "public.a", True),
    ("truncate", "public.b", True),
    ("row", "public.a", False), ("row", "public.a", True),
    ("row", "public.b", True),
]


@pytest.fixture
def source(database: Database) -> PostgresSource:
    """Return a source whose log has all tables; its patterns exclude c."""
    database.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"))
    everything = PostgresSettings(
        "cuts", "127.0.0.1", database.server.port, database.name, f"{database.name}_capture", "secret", ("public.*",),
        tls="disable", slot=f"{database.name}_slot",
    )
    run_init(everything, database.server.user, database.server.password)
    database.run(*STATEMENTS)
    return PostgresSource(replace(everything, patterns=("public.a", "public.b")))


@contextmanager
def opened(source: PostgresSource, resume: ResumePoint | None) -> Iterator[PgLogStream]:
    """Yield a stream, once the server has detected the end of the previous one."""
    deadline = time.monotonic() + 20
    while True:
        try:
            stream = source.open_log(resume, 1)
            break
        except SourceError:
            assert time.monotonic() < deadline
    try:
        yield stream
    finally:
        stream.close()


def read(source: PostgresSource, *, max_rows: int, again: int) -> list[tuple[str, str, bool]]:
    """All rows but schemas, with at most about ``max_rows`` a piece and a new stream after ``again`` pieces.

    Together they must hold the longest transaction: a new stream reads the one it begins in from its start.
    """
    found: list[tuple[tuple[int, int], tuple[str, str, bool]]] = []
    resume: ResumePoint | None = None
    while len(found) < len(ROWS):
        with opened(source, resume) as stream:
            for _ in range(again):
                piece = stream.read(max_bytes=1 << 20, max_rows=max_rows, seconds=0.5)
                if piece is None:
                    break
                resume = piece.reached
                found += [
                    ((row["lsn"], row["seq"]), (row["kind"], row["table"], row["last_in_txn"]))
                    for row in piece.rows.to_pylist() if row["kind"] != SCHEMA
                ]
    positions = [position for position, _ in found]
    assert positions == sorted(set(positions))
    return [row for _, row in found]


_LOOK_EVERY, _PIECES = (1, 2, 3, 256), ((1, 9), (2, 5), (5, 3), (1000, 1000))


@pytest.mark.parametrize(
    ("look_every", "max_rows", "again"),
    [
        pytest.param(look_every, *pieces, marks=[] if number == other else pytest.mark.slow)
        for number, look_every in enumerate(_LOOK_EVERY) for other, pieces in enumerate(_PIECES)
    ],
)
def test_rows_land_once_wherever_log_is_cut(
    source: PostgresSource, monkeypatch: pytest.MonkeyPatch, look_every: int, max_rows: int, again: int
) -> None:
    monkeypatch.setattr(log, "_MESSAGES_PER_CHECK", look_every)
    assert read(source, max_rows=max_rows, again=again) == ROWS


@pytest.mark.parametrize("look_every", [3, 5, 7])
def test_time_cuts_no_transaction(
    source: PostgresSource, monkeypatch: pytest.MonkeyPatch, look_every: int
) -> None:
    """A piece that time ends has whole transactions only, however little of an open one has been read."""
    monkeypatch.setattr(log, "_MESSAGES_PER_CHECK", look_every)
    rows = list[tuple[str, str, bool]]()
    with opened(source, None) as stream:
        while len(rows) < len(ROWS):
            piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=0.0)
            if piece is not None:
                assert piece.reached.landed is None
                rows += [(row["kind"], row["table"], row["last_in_txn"]) for row in piece.rows.to_pylist()
                         if row["kind"] != SCHEMA]
    assert rows == ROWS


@pytest.mark.parametrize("frame_bytes", [1, 40])
def test_small_frames_cut_no_transaction(
    source: PostgresSource, monkeypatch: pytest.MonkeyPatch, frame_bytes: int
) -> None:
    monkeypatch.setattr(log, "_MESSAGES_PER_CHECK", 1)
    monkeypatch.setattr(log, "_MAX_UNFRAMED_BYTES", frame_bytes)
    assert read(source, max_rows=1000, again=1000) == ROWS
