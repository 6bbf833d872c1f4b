"""The ``verify`` job as scripts use it: on a real catalog, with the documents that capture reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dblake.ingest.capture.dump_queue import dump_status, pending_tasks, read_requests
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.table_life import LifeState, TableLife, save_life
from tests.support.postgres import Database

HOME = Path(__file__).parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> FileProgress:
    return FileProgress(tmp_path / "progress/shop")


@pytest.fixture
def run(database: Database, tmp_path: Path) -> Run:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE log (what text)",
                 "CREATE TABLE prices (region text, day date, PRIMARY KEY (region, day))")
    conf = tmp_path / "shop.yaml"
    conf.write_text(json.dumps({
        "warehouse": "./warehouse", "progress": "file:./progress", "verify": {"sample": 0.5},
        "source": {
            "name": "shop", "type": "postgres", "host": "127.0.0.1", "port": database.server.port,
            "database": database.name, "user": database.server.user, "password": "${env:SHOP_PASSWORD}",
            "tls": "disable", "tables": ["public.*"],
        },
    }))
    environment = os.environ | {
        "PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "DBLAKE_CONF": str(conf), "SHOP_PASSWORD": database.server.password,
    }

    def finish(*arguments: str, job: str = "verify") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(HOME / f"jobs/{job}.py"), *arguments], text=True, capture_output=True, check=False,
            env=environment, timeout=60,
        )

    return finish


def test_verify_queues_tables_with_key(run: Run, store: FileProgress) -> None:
    done = run("--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["tables"], printed["skipped"]) == (["public.orders", "public.prices"], ["public.log"])
    assert "skipped: public.log has no primary key" in done.stderr
    requests = read_requests(store)
    assert [(each.id, each.table, each.verify, each.sample) for each in requests] == [
        (printed["id"], "public.orders", True, 0.5), (printed["id"], "public.prices", True, 0.5),
    ]
    assert dump_status(store) == []
    assert run("--table", "public.prices", "--sample", "1").stdout.strip() == read_requests(store)[-1].id
    assert [each.sample for each in read_requests(store)] == [0.5, 0.5, 1.0]


def test_verify_skips_suspended_table_by_name(run: Run, store: FileProgress) -> None:
    """It cannot be read, and would end the verification of all others."""
    save_life(store, TableLife("public.prices", LifeState.SUSPENDED, "2026-01-01", "1/7", "row_security: hidden"))
    done = run("--json")
    assert (json.loads(done.stdout)["tables"], [each.table for each in read_requests(store)]) == (
        ["public.orders"], ["public.orders"],
    )
    assert "skipped: public.prices is suspended: row_security: hidden" in done.stderr


def test_verification_is_steered_by_id_only(run: Run, store: FileProgress) -> None:
    queued = run("--table", "public.orders").stdout.strip()
    assert run("pause", job="dump").stderr.strip() == "no unfinished dump"
    assert run("cancel", queued, job="dump").stdout == f"{queued} public.orders cancelled\n"
    assert pending_tasks(store) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--table", "public.log"), 78, "table public.log has no primary key"),
        (("--table", "public.ordres"), 78, "did you mean public.orders"),
        (("--repair",), 64, "--repair without --wait"),
        (("--remove", "--wait"), 64, "--remove without --repair"),
        (("--sample", "0"), 64, "0.0 is not in the range"),
    ],
    ids=["keyless", "unknown", "repair", "remove", "sample"],
)
def test_invalid_verify_is_rejected(
    run: Run, store: FileProgress, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run(*arguments)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert pending_tasks(store) == []
