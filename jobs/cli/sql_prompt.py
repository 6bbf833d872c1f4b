r"""The SQL prompt: read statements and commands, run each so that Ctrl-C cancels only it, show progress.

Place: between ``jobs.sql`` and an engine. Guarantee: an error of a statement is one line, and the prompt continues;
Ctrl-C discards what is typed or cancels what runs; Ctrl-D and ``\q`` end the prompt.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TextIO

import click

from dblake.base.core.errors import DblakeError, UsageError
from dblake.serve.sql.result import Engine
from jobs.cli.frame import keep_running_after_interrupts
from jobs.cli.sql_output import print_result
from jobs.cli.sql_statements import is_blank, split_statements

_PROMPT, _CONTINUED = "dblake> ", "   ...> "
_POLL_SECONDS = 0.1
_QUIET_SECONDS = 1.0
"""A query shows its progress after so long."""
_HISTORY_LINES = 1000
_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "WITH",
    "UNION ALL", "DISTINCT", "COUNT(*)", "SHOW TABLES", "DESCRIBE", "EXPLAIN", "AND", "OR", "NOT", "NULL", "IS", "IN",
    "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "AS",
)
HELP = """\
SELECT …;            a query; it may span lines and ends with ;
SHOW TABLES;  \\d     list the tables
DESCRIBE t;   \\d t   list the columns of a table or view
EXPLAIN SELECT …;    show how a query is executed
\\x                   switch vertical rows: always, or only where a table is too wide
\\q           Ctrl-D  end
Ctrl-C               cancel the query that runs, or discard what is typed
Tab completes names; the arrow keys recall earlier statements.
Views: t_live has changes that t lacks yet, t_history every version of every row; dblake.events has all changes."""


def run_statement(engine: Engine, statement: str, form: str | None) -> None:
    """Run one statement and print its result.

    Raises UsageError or StateError, and KeyboardInterrupt if it was cancelled with Ctrl-C.
    """
    _run_cancellable(engine, lambda: print_result(engine.query(statement), form))
    for warning in engine.warnings():
        click.echo(f"note: {warning}", err=True)


def run_file(engine: Engine, stream: TextIO, form: str | None) -> int:
    """Run all statements of a file or pipe; return the exit code of the first that failed, or 0."""
    code = 0
    statements, rest = split_statements(stream.read())
    for statement in [*statements, *([] if is_blank(rest) else [rest])]:
        try:
            run_statement(engine, statement, form)
        except DblakeError as error:
            _print_error(error)
            code = code or int(error.exit_code)
    return code


class Prompt:
    """An interactive prompt. ``form`` is that of ``print_result``."""

    def __init__(self, engine: Engine, form: str | None) -> None:
        self._engine, self._form = engine, form
        self._typed = ""

    def run(self) -> None:
        """Read and run statements until the end of input."""
        click.echo(self._engine.describe_tables())
        click.echo("End a statement with ; — help lists the commands, Ctrl-D ends.")
        # From here on Ctrl-C cancels a query.
        keep_running_after_interrupts()
        with _line_editing(self._engine):
            while True:
                try:
                    line = input(_CONTINUED if self._typed else _PROMPT)
                except EOFError:
                    click.echo()
                    return
                except KeyboardInterrupt:
                    # The half-typed statement is discarded.
                    click.echo()
                    self._typed = ""
                    continue
                if not self._typed and self._is_end(line):
                    return
                try:
                    self._take(line)
                except KeyboardInterrupt:
                    click.echo("cancelled", err=True)
                except DblakeError as error:
                    _print_error(error)

    @staticmethod
    def _is_end(line: str) -> bool:
        return line.strip().rstrip(";").lower() in ("\\q", "quit", "exit")

    def _take(self, line: str) -> None:
        """Run a command, or add the line to what is typed and run the statements that it completes."""
        words = line.strip().rstrip(";").split(maxsplit=1)
        if not self._typed and words and (words[0].startswith("\\") or words[0].lower() in ("help", "?")):
            self._run_command(words[0], words[1] if len(words) > 1 else "")
            return
        was_empty = not self._typed
        statements, self._typed = split_statements(f"{self._typed}\n{line}" if self._typed else line)
        for statement in statements:
            run_statement(self._engine, statement, self._form)
        if self._typed and was_empty and not statements and len(self._typed) == len(line):
            click.echo("(the statement ends with ;)", err=True)

    def _run_command(self, command: str, argument: str) -> None:
        if command in ("\\d", "\\dt"):
            run_statement(self._engine, f"DESCRIBE {argument}" if argument else "SHOW TABLES", self._form)
        elif command == "\\x":
            self._form = None if self._form == "vertical" else "vertical"
            click.echo(f"vertical rows: {'always' if self._form else 'where a table is too wide'}")
        elif command.lower() in ("help", "?", "\\?", "\\h", "\\help"):
            click.echo(HELP)
        else:
            raise UsageError(f"there is no command {command}", next_step="help lists the commands")


def _print_error(error: DblakeError) -> None:
    click.echo(" ".join(str(error).split()), err=True)


def _run_cancellable(engine: Engine, work: Callable[[], None]) -> None:
    """Run ``work`` in a thread, so that Ctrl-C reaches this one; cancel the engine's query then."""
    failures: list[BaseException] = []
    # Not Thread.join: interrupted by a signal, Python 3.11 takes the thread for ended while it runs.
    has_ended = threading.Event()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            failures.append(error)
        has_ended.set()

    thread = threading.Thread(target=run, name="query", daemon=True)
    is_cancelled = False
    progress = _Progress(engine)
    thread.start()
    while not has_ended.is_set():
        try:
            has_ended.wait(_POLL_SECONDS)
            progress.show()
        except KeyboardInterrupt:
            is_cancelled = True
        except BaseException:
            engine.interrupt()
            raise
        if is_cancelled:
            # Again and again: the first may have come before the query ran.
            engine.interrupt()
    progress.clear()
    if is_cancelled:
        raise KeyboardInterrupt
    if failures:
        raise failures[0]


class _Progress:
    """One line on a terminal that shows how far a query is."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._began = time.monotonic()
        self._is_shown = False
        self._is_terminal = sys.stderr.isatty()

    def show(self) -> None:
        """Write the line, if the query takes long and no rows are being printed."""
        seconds = time.monotonic() - self._began
        if not self._is_terminal or seconds < _QUIET_SECONDS:
            return
        done = self._engine.progress()
        if done is None:
            self.clear()
            return
        sys.stderr.write(f"\r\x1b[K{done:4.0%}  {seconds:.0f} s, Ctrl-C cancels")
        sys.stderr.flush()
        self._is_shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_shown = False


@contextlib.contextmanager
def _line_editing(engine: Engine) -> Iterator[None]:
    """Let ``input`` have line editing, completion, and a history that outlives the prompt."""
    import readline

    _set_completion(readline, engine)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "dblake" / "sql_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)


def _set_completion(readline: ModuleType, engine: Engine) -> None:
    words: list[str] = []

    def complete(text: str, number: int) -> str | None:
        if not words:
            with contextlib.suppress(DblakeError):
                words.extend(sorted({*engine.words(), *_KEYWORDS}))
        found = [word for word in words if word.lower().startswith(text.lower())]
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>;*+-/")
    readline.parse_and_bind("tab: complete")
