"""``sql`` as users run it: one statement, a file, and a session at the prompt in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from dblake.base.lake.layout import Paths
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.table_life import LifeState, TableLife, save_life
from dblake.serve.sql.engine import DuckdbEngine
from jobs.cli.sql_output import print_result
from jobs.cli.sql_statements import split_statements
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

HOME = Path(__file__).parents[3]
T = table_schema("public.orders", "id integer key", "note text")
WIDE = table_schema("public.wide", "id integer key", *(f"column_{n} text" for n in range(12)))
SHOP = table_schema('"My Shop"."Order lines"', "id integer key")
CONF = """
warehouse: ./warehouse
progress: file:./progress
source: {name: shop, type: postgres, host: 127.0.0.1, database: shop, user: dblake, password: "${env:PATH}",
         tables: ["public.*"]}
"""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql")
    lake = PlainLake(folder / "warehouse")
    for schema in (T, WIDE, SHOP):
        lake.schema(schema)
    wide = dict.fromkeys(WIDE.names, "a long text") | {"id": "1"}
    lake.land(1, {T: [(n, "c", str(n), {"id": str(n), "note": None}) for n in (1, 2, 3)], WIDE: [(4, "c", "1", wide)]})
    lake.fold(1)
    (folder / "conf.yaml").write_text(CONF)
    return folder / "conf.yaml"


def submit(conf: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HOME / "jobs" / "sql.py"), "--conf", str(conf), *arguments], capture_output=True,
        text=True, check=False, input=stdin or "", env={**os.environ, "JAVA_HOME": "/nowhere"},
    )


def test_result_is_printed_in_every_form(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = DuckdbEngine(Paths(str(conf.parent / "warehouse"), "shop"))

    def printed(statement: str, form: str | None) -> str:
        print_result(engine.query(statement), form)
        return capsys.readouterr().out

    statement = "SELECT id, note, 1.10::DECIMAL(38,18) AS n FROM orders WHERE id < 3 ORDER BY id"
    assert json.loads(printed(statement, "json")) == [
        {"id": 1, "note": None, "n": 1.1}, {"id": 2, "note": None, "n": 1.1}
    ]
    assert printed(statement, "csv") == "id,note,n\n1,,1.1\n2,,1.1\n"
    assert printed("SELECT id, note FROM orders ORDER BY id LIMIT 1", "vertical") == "-[ 1 ]-\nid   | 1\nnote | NULL\n"
    assert "│ 2  │ NULL │ 1.1 │" in printed(statement, None)
    assert printed("SELECT * FROM orders WHERE false", "json") == "[]\n"
    print_result(engine.query("SELECT i FROM range(1001) r(i)"), None)
    assert "only the first 1000 rows are shown" in capsys.readouterr().err


def test_query_over_incomplete_table_has_one_note(conf: Path) -> None:
    store = FileProgress(conf.parent / "progress" / "shop")
    lives = {"public.orders": LifeState.INCOMPLETE, "public.wide": LifeState.FOLLOWED}
    for table, state in lives.items():
        save_life(store, TableLife(table, state, "", "", "no primary key"))
    done = submit(conf, stdin="SELECT count(*) FROM wide; SELECT count(*) FROM orders_live; SELECT 1 FROM orders;")
    assert done.returncode == 0
    assert done.stderr == "note: table public.orders lacks rows: incomplete: no primary key\n"
    save_life(store, TableLife("public.orders", LifeState.FOLLOWED, "", ""))


def test_query_over_lossy_values_has_one_note(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path / "warehouse")
    dates = table_schema("public.dates", "id integer key", "day date", "x numeric", "plain integer")
    lake.schema(dates)
    days = ["infinity", "0044-03-15 BC", "2024-02-29", None]
    lake.land(1, {dates: [
        (n, "c", str(n), {"id": str(n), "day": day, "x": "NaN" if n == 1 else "1.5", "plain": "1"})
        for n, day in enumerate(days, 1)
    ]})
    lake.fold(1)
    (tmp_path / "conf.yaml").write_text(CONF)
    done = submit(tmp_path / "conf.yaml", "--csv", stdin="SELECT count(day) AS n FROM dates; SELECT 1 FROM dates_live;")
    assert done.stdout.startswith("n\n1\n")
    assert done.stderr == (
        "note: table public.dates shows NULL for values that their types cannot hold: day in 2 rows, x in 1 row; "
        "dblake.events has them as text\n"
    )


def test_file_with_failed_statement_ends_with_its_code(conf: Path) -> None:
    """The statements after it are run, as psql does."""
    statements = "-- first\nSELECT 1 AS a; SELECT nope\nFROM orders;\nSELECT ';' AS b;\nSELECT 3 AS c"
    done = submit(conf, "--csv", stdin=statements)
    assert (done.stdout, done.returncode) == ("a\n1\nb\n;\nc\n3\n", 64)
    assert done.stderr.count("\n") == 1
    assert 'Referenced column "nope" not found' in done.stderr
    done = submit(conf, "--csv", stdin="SELECT 1 AS a;\n-- end\n")
    assert (done.stdout, done.returncode) == ("a\n1\n", 0)


@pytest.mark.parametrize(("java", "code", "message"), [
    (None, 78, "there is no Java. Next: install Java 17 or newer, or correct JAVA_HOME"),
    ("kill -9 $$", 75, "Spark's JVM ended at its start; the system may have killed it"),
])
def test_jvm_that_does_not_start_is_no_bug(
    conf: Path, tmp_path: Path, java: str | None, code: int, message: str
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    if java:
        program.write_text(f"#!/bin/sh\n{java}\n")
        program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(HOME / "jobs/sql.py"), "--conf", str(conf), "--engine", "spark", "SELECT 1"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_invalid_point_is_refused_before_start(conf: Path, engine: str) -> None:
    """Nothing that Spark needs is imported for it."""
    done = submit(conf, "--engine", engine, "--at", "yesterday", "SELECT 1")
    assert (done.returncode, done.stdout) == (64, "")
    assert "'yesterday' is no point" in done.stderr


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT 2;\n", ["SELECT 1", "SELECT 2"], ""),
        ("SELECT ';' , \"a;b\", `c;d`", [], "SELECT ';' , \"a;b\", `c;d`"),
        ("SELECT 'it''s;", [], "SELECT 'it''s;"),
        ("SELECT 1 -- one; two\n;", ["SELECT 1 -- one; two"], ""),
        ("/* a; */ SELECT 1;", ["/* a; */ SELECT 1"], ""),
        ("/* a;", [], "/* a;"),
        (";;\n;", [], ""),
        ("-- nothing", [], ""),
        ("SELECT 4 / 2 - 1;", ["SELECT 4 / 2 - 1"], ""),
    ],
)
def test_text_is_split_at_semicolons(text: str, statements: list[str], rest: str) -> None:
    assert split_statements(text) == (statements, rest)


class Session:
    """The prompt in a pseudo-terminal of 100 columns; ``program`` are the arguments of Python that start it."""

    def __init__(self, conf: Path, program: Sequence[str] = (str(HOME / "jobs" / "sql.py"),)) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(conf.parent), "JAVA_HOME": "/nowhere"}
        self.process = subprocess.Popen(
            [sys.executable, *program, "--conf", str(conf)], stdin=terminal, stdout=terminal, stderr=terminal,
            env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - it gets Ctrl-C by the terminal
        )
        os.close(terminal)

    def read_until(self, text: str, seconds: float = 30) -> str:
        """Return what is printed up to a text."""
        found, end = "", time.monotonic() + seconds
        while text not in found:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {text!r} within {seconds} s: {found!r}"
            found += _ANSI.sub("", os.read(self._master, 1 << 16).decode())
        return found

    def type(self, text: str, until: str = "dblake> ") -> str:
        """Type a text and return what is printed up to another."""
        os.write(self._master, text.encode())
        return self.read_until(until)

    def interrupt(self) -> str:
        """Press Ctrl-C until a prompt comes: readline loses a signal that arrives while it completes a name."""
        for _ in range(10):
            os.write(self._master, b"\x03")
            with suppress(AssertionError):
                return self.read_until("dblake> ", 3)
        raise AssertionError("Ctrl-C has no effect")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


_HASTY = "from jobs.cli import frame; from jobs.sql import sql; frame._STOP_SECONDS = 1.0; frame.run_job(sql)"
"""The job, which ends one second after a signal instead of 60."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_prompt_survives_interrupt_and_ends_by_term(conf: Path, number: int) -> None:
    """Ctrl-C cancels a query; the limit of time after a signal that ends the job is not for it."""
    session = Session(conf, ("-c", _HASTY))
    try:
        session.read_until("dblake> ")
        if number == signal.SIGTERM:
            session.process.send_signal(number)
            assert session.process.wait(10) == 0
            return
        session.type("FROM (\x03")
        session.type("SELECT count(*) FROM range(1000000000000) r(i) WHERE i % 7 = 3;\n", "Ctrl-C cancels")
        session.type("\x03")
        time.sleep(1.5)
        assert "│ 42 " in session.type("SELECT 42 AS answer;\n")
        assert session.process.poll() is None
    finally:
        session.close()


@pytest.fixture
def session(conf: Path) -> Iterator[Session]:
    session = Session(conf)
    yield session
    session.close()


def test_prompt_session_lists_describes_cancels_and_answers(session: Session, conf: Path) -> None:
    banner = session.read_until("dblake> ")
    assert "source shop: 3 tables as of 1/4/0 (2024-01-01T00:04:00Z)" in banner
    assert "End a statement with ;" in banner
    assert '"My Shop"."Order lines"' in session.type("SHOW TABLES;\n")
    assert "public.orders" in session.type("\\d\n")
    assert "type at the source" in session.type("\\d orders\n")
    assert "the statement ends with ;" in session.type("SELECT 4711\n", "...> ")
    # Ctrl-C discards what is typed.
    session.type("FROM (\x03")
    assert "│ 3 " in session.type("SELECT count(*) FROM orders;\n")
    # Ctrl-C cancels the query that runs, and only that.
    shown = session.type("SELECT count(*) FROM range(1000000000000) r(i) WHERE i % 7 = 3;\n", "Ctrl-C cancels")
    assert "0%" in shown
    assert "cancelled" in session.type("\x03")
    assert "│ 42 " in session.type("SELECT 42 AS answer;\n")
    # A table wider than the terminal has a line per column; \x chooses that for all.
    assert "column_11 | a long text" in session.type("SELECT * FROM wide;\n")
    assert "always" in session.type("\\x\n")
    assert "note | NULL" in session.type("SELECT * FROM orders LIMIT 1;\n")
    assert "there is no table ordres. Next: write public.orders" in session.type("SELECT * FROM ordres;\n")
    assert "EXPLAIN SELECT" in session.type("help\n")
    assert "there is no command \\nope" in session.type("\\nope\n")
    session.type("SELECT * FROM public.or\t", "public.orders")
    session.interrupt()
    os.write(session._master, b"\x04")
    assert session.process.wait(10) == 0
    assert "SELECT 42 AS answer;" in (conf.parent / "dblake" / "sql_history").read_text()
