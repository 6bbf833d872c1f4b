"""The ``dump`` job as scripts use it: on a real catalog, with the documents that capture reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dblake.base.core.errors import UsageError
from dblake.ingest.capture.dump_keys import parse_keys
from dblake.ingest.capture.dump_queue import pending_tasks, save_progress
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.throttle import Throttle, read_throttle
from dblake.landing.control import DumpStart
from tests.support.postgres import Database

HOME = Path(__file__).parents[2]
ODD = 'public."we""ird; drop"'

IMPORTED = ("--at", "0/1", "--snapshot", "1:1:", "--format", "pg_dump", "missing.sql")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> FileProgress:
    return FileProgress(tmp_path / "progress/shop")


@pytest.fixture
def command(database: Database, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE log (what text)",
        "CREATE TABLE prices (region text, day date, price int, PRIMARY KEY (region, day))",
        'CREATE TABLE "we""ird; drop" (id int PRIMARY KEY)', "CREATE TABLE hidden (id int PRIMARY KEY)",
    )
    conf = tmp_path / "shop.yaml"
    conf.write_text(json.dumps({
        "warehouse": "./warehouse", "progress": "file:./progress",
        "source": {
            "name": "shop", "type": "postgres", "host": "127.0.0.1", "port": database.server.port,
            "database": database.name, "user": database.server.user, "password": "${env:SHOP_PASSWORD}",
            "tls": "disable", "tables": ["public.*", "!public.hidden"],
        },
    }))

    def start(*arguments: str) -> subprocess.Popen[str]:
        environment = {
            "PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "DBLAKE_CONF": str(conf), "SHOP_PASSWORD": database.server.password,
        }
        return subprocess.Popen(
            [sys.executable, str(HOME / "jobs/dump.py"), *arguments], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment,
        )

    return start


@pytest.fixture
def run(command: Callable[..., subprocess.Popen[str]]) -> Run:
    def finish(*arguments: str) -> subprocess.CompletedProcess[str]:
        with command(*arguments) as process:
            out, err = process.communicate(timeout=60)
            return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return finish


def test_start_all_queues_tables_with_key(run: Run, store: FileProgress) -> None:
    done = run("start", "--all", "--json")

    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["tables"] == [ODD, "public.orders", "public.prices"]
    assert printed["skipped"] == ["public.log"]
    assert "skipped: public.log has no primary key" in done.stderr
    assert [(t.id, t.table) for t in pending_tasks(store)] == [(printed["id"], table) for table in printed["tables"]]


def test_start_queues_tables_in_given_order(run: Run, store: FileProgress) -> None:
    done = run("start", "--table", "public.prices", "--table", 'public."orders"', "--table", ODD)
    assert done.returncode == 0, done.stderr
    assert [t.table for t in pending_tasks(store)] == ["public.prices", "public.orders", ODD]
    assert done.stdout.strip() == pending_tasks(store)[0].id


@pytest.mark.parametrize(("options", "share"), [((), 0.1), (("--remove",), None)])
def test_start_limits_what_dump_deletes(run: Run, store: FileProgress, options: tuple[str, ...], share: float) -> None:
    assert run("start", "--table", "public.prices", *options).returncode == 0
    assert [task.request.max_removed for task in pending_tasks(store)] == [share]


def test_start_queues_given_keys(run: Run, store: FileProgress) -> None:
    done = run("start", "--table", "public.prices", "--keys", '[["eu", "2026-01-01"], ["us", "2026-01-02"]]')
    assert done.returncode == 0, done.stderr
    (task,) = pending_tasks(store)
    assert task.keys == (("eu", "2026-01-01"), ("us", "2026-01-02"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("start", "--table", "public.ordres"), 78, "public.ordres is not captured. Next: did you mean public.orders"),
        (("start", "--table", "public.hidden"), 78, "table public.hidden is not captured"),
        (("start", "--table", "orders"), 78, "table orders is not captured"),
        (("start", "--table", "public.log"), 78, "table public.log has no primary key, so it cannot be dumped"),
        (("start",), 64, "no tables to dump, or two selections"),
        (("start", "--all", "--table", "public.orders"), 64, "no tables to dump, or two selections"),
        (("start", "--all", "--keys", "[1]"), 64, "no tables to dump, or two selections"),
        (("start", "--table", "public.orders", "--keys", '["abc"]'), 64,
         "--keys: entry 1 is no value of column id, which is integer"),
        (("start", "--table", "public.orders", "--keys", "[1]", "--remove"), 64, "a dump of --keys deletes nothing"),
        (("start", "--table", "public.orders", "--keys", "[[1, 2]]"), 64,
         "--keys: entry 1 has 2 values, the key has 1 columns"),
        (("pause", "20000101-000000-000-0000"), 78, "there is no dump 20000101-000000-000-0000"),
        (("cancel", "--table", "public.orders"), 78, "there is no dump of table public.orders"),
        (("import", "--table", "public.log", *IMPORTED), 78, "table public.log has no primary key"),
        (("import", "--table", "public.orders", *IMPORTED), 78, "capture has landed no log"),
        (("throttle",), 64, "no limit to set, or --off beside one"),
        (("throttle", "--off", "--delay", "1"), 64, "no limit to set, or --off beside one"),
        (("throttle", "--chunk-size", "0"), 64, "0 is not in the range"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_command_is_rejected(
    run: Run, store: FileProgress, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run(*arguments)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert pending_tasks(store) == []


def test_pause_resume_and_cancel_show_in_status(run: Run, store: FileProgress) -> None:
    dump_id = run("start", "--table", "public.orders", "--table", "public.prices").stdout.strip()

    def states() -> dict[str, str]:
        return {entry["table"]: entry["state"] for entry in json.loads(run("status", "--json").stdout)}

    assert run("pause").stdout.splitlines() == [f"{dump_id} public.orders paused", f"{dump_id} public.prices paused"]
    assert pending_tasks(store) == []
    run("resume", dump_id, "--table", "public.prices")
    assert states() == {"public.orders": "paused", "public.prices": "queued"}
    assert [t.table for t in pending_tasks(store)] == ["public.prices"]
    run("cancel", dump_id)
    assert states() == {"public.orders": "cancelled", "public.prices": "cancelled"}
    assert run("resume", dump_id).stderr.strip() == "no unfinished dump"
    shown = run("status").stdout.splitlines()
    assert f"{dump_id} public.orders" in shown
    assert any(line.startswith("  cancelled: 0 rows in 0 chunks") for line in shown), shown


def test_throttle_keeps_other_limits(run: Run, store: FileProgress) -> None:
    assert run("throttle", "--chunk-size", "500").stdout == "chunk size 500, delay 0.0 s, share 1.0\n"
    printed = run("throttle", "--delay", "0.5", "--share", "0.25", "--max-latency", "0.1").stdout
    assert printed == "chunk size 500, delay 0.5 s, share 0.25, latency at most 0.1 s\n"
    assert read_throttle(store) == Throttle(500, 0.5, 0.25, 0.1)
    assert run("throttle", "--off").stdout.startswith("chunk size ")
    assert read_throttle(store) == Throttle(None, None)


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (None, 0, "public.orders: done, 7 rows"),
        ("table public.orders has no primary key", 78, "public.orders failed. Next: read the reason with dump status"),
    ],
    ids=["done", "failed"],
)
def test_start_wait_ends_with_dump(
    command: Callable[..., subprocess.Popen[str]], store: FileProgress, error: str | None, code: int, last: str
) -> None:
    with command("start", "--table", "public.orders", "--wait") as process:
        assert process.stdout is not None and process.stderr is not None
        dump_id = process.stdout.readline().strip()
        (task,) = pending_tasks(store)
        assert task.id == dump_id
        task = task.start().split_at([]).add_chunk(0, 7, ("7",), done=False, began=DumpStart(1, 9, 0))
        save_progress(store, task)
        lines = []
        while "public.orders: running, 7 rows" not in lines:
            lines.append(process.stderr.readline().rstrip("\n"))
            assert process.poll() is None, lines
        assert any(f"capture does not run, and dump {dump_id} waits for it" in line for line in lines)
        save_progress(store, task.fail(error) if error else task.complete())
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.strip().endswith(last)


def test_start_wait_interrupted_leaves_dump_queued(
    command: Callable[..., subprocess.Popen[str]], store: FileProgress
) -> None:
    with command("start", "--table", "public.orders", "--wait") as process:
        assert process.stdout is not None and process.stderr is not None
        dump_id = process.stdout.readline().strip()
        while "queued" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"dump {dump_id} stays queued; dump cancel {dump_id} cancels it" in err
    assert [task.id for task in pending_tasks(store)] == [dump_id]


def test_cancel_dismisses_failed_dump_by_id(run: Run, store: FileProgress) -> None:
    first = run("start", "--table", "public.orders").stdout.strip()
    (task,) = pending_tasks(store)
    save_progress(store, task.start().fail("a page of it is damaged"))
    assert run("cancel").stderr.strip() == "no unfinished dump"
    assert run("cancel", first).stdout == f"{first} public.orders cancelled\n"
    (entry,) = json.loads(run("status", "--json").stdout)
    assert (entry["state"], entry["error"]) == ("cancelled", "a page of it is damaged")


def test_import_needs_no_database_libraries() -> None:
    check = "import sys, jobs.dump; print({'pyarrow', 'deltalake', 'pyspark', 'psycopg2'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"},
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("text", "columns", "keys"),
    [
        ("[1]", ["id"], [("1",)]),
        ("[[1], 2]", ["id"], [("1",), ("2",)]),
        ("[12345678901234567890]", ["id"], [("12345678901234567890",)]),
        ("[1.50, 1e400]", ["id"], [("1.50",), ("1e400",)]),
        ("[true]", ["id"], [("true",)]),
        ('["a\'b;\\u0000x"]', ["id"], [("a'b;\x00x",)]),
        ('[["eu", 1]]', ["region", "id"], [("eu", "1")]),
    ],
)
def test_parse_keys_returns_canonical_text(text: str, columns: list[str], keys: list[tuple[str, ...]]) -> None:
    assert parse_keys(text, columns) == keys


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("secret", ["id"]), ("[]", ["id"]), ("5", ["id"]), ('{"id": 1}', ["id"]), ("[null]", ["id"]),
        ("[[[1]]]", ["id"]),
        ('[{"id": 1}]', ["id"]), ("[1, 2]", ["a", "b"]), ("[[1, 2, 3]]", ["a", "b"]),
    ],
)
def test_invalid_keys_are_rejected_without_values(text: str, columns: list[str]) -> None:
    with pytest.raises(UsageError) as rejected:
        parse_keys(text, columns)
    assert "secret" not in str(rejected.value)
