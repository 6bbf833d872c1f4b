"""Live readings of a real database while only capture runs: consistent, and up to the commit."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from dblake.ingest.capture.loop import Until
from dblake.serve.read.reading import LakeReading, open_reading
from dblake.serve.read.rows import read_rows
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

pytestmark = pytest.mark.slow

ACCOUNTS = 50
WAIT_SECONDS = 60
TABLES = ("public.checking", "public.saving")


def amounts(reading: LakeReading) -> dict[tuple[str, int], int]:
    return {
        (table, row["id"]): row["amount"]
        for table in TABLES for part in read_rows(reading.table(table)) for row in part.to_pylist()
    }


def test_live_reading_follows_transfers_with_capture_alone(database: Database, tmp_path: Path) -> None:
    """Transfers run while the tables are dumped; then each commit is awaited in a live reading."""
    backend, lake, stop = PostgresBackend(database), CaptureLake(tmp_path), threading.Event()
    for table in TABLES:
        database.run(f"CREATE TABLE {table} (id int PRIMARY KEY, amount int NOT NULL)")
        database.run(f"INSERT INTO {table} SELECT n, 1000 FROM generate_series(1, {ACCOUNTS}) n")
    source = backend.source("public.*")
    lake.dump(*TABLES)
    capture = threading.Thread(target=lambda: lake.capture(
        source, until=Until(), stop=stop, chunk_size=10, commits_per_second=20.0))
    draw = random.Random(1)

    def transfer() -> tuple[str, int]:
        amount, account = draw.randint(1, 9), draw.randint(1, ACCOUNTS)
        database.run(
            f"UPDATE public.checking SET amount = amount - {amount} WHERE id = {account}; "
            f"UPDATE public.saving SET amount = amount + {amount} WHERE id = {draw.randint(1, ACCOUNTS)}"
        )
        return "public.checking", account

    capture.start()
    try:
        while any(dump["state"] != "done" for dump in lake.dumps()):
            transfer()
        for _ in range(40):
            table, account = transfer()
            committed = time.monotonic()
            expected = database.rows(f"SELECT amount FROM {table} WHERE id = {account}")[0][0]
            while True:
                found = amounts(open_reading(lake.paths, is_live=True))
                assert (len(found), sum(found.values())) == (2 * ACCOUNTS, 2 * ACCOUNTS * 1000)
                if found[table, account] == expected:
                    break
                assert time.monotonic() - committed < WAIT_SECONDS
    finally:
        stop.set()
        capture.join()
        backend.close()
