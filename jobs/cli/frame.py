"""What all jobs share at the command line: common options, logging, and how an ending becomes an exit code.

A job module declares a click command and ends with ``run_job(command)``::

    @click.command("reconcile")
    @job_options
    @click.option("--once", is_flag=True, help="…")
    def reconcile(config: Config, once: bool) -> None:
        "Turn landing into events."

``job_options`` adds ``--conf`` and ``--verbose`` and hands the loaded configuration over; in a click group it goes on
each subcommand and on the group, so that ``--conf`` may stand before or after the subcommand. Promise: facts go to
stdout, all else to stderr; an error is one line there, ``dblake JOB: what. Next: …`` (with ``DBLAKE_LOG=json`` every
line is a JSON object instead), and never holds row values, which the messages and tracebacks of unexpected exceptions
might: those are shown with ``--verbose`` only.

Asked to stop (SIGTERM), a job ends with 0. One that must finish what it has in hand polls the event of
``stop_requested()``; any other is interrupted where it stands. A job that has not ended 60 s after SIGTERM, because it
waits for a database, for storage or for Spark, ends there: a restart is as safe as after SIGKILL.
"""

from __future__ import annotations

import _thread
import functools
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from pythonjsonlogger.json import JsonFormatter

from dblake.config import load_config
from dblake.core.errors import DblakeError, ExitCode, UsageError

_INTERRUPTED = 130
_STOP_SECONDS = 60.0
"""Longer than capture needs to end at a transaction's end and to land what it has read."""
_JSON_NAMES = {"levelname": "level", "name": "logger"}
_bug_detail = False


class _Stopped(BaseException):
    """SIGTERM came. A BaseException, so that no ``except Exception`` on the way takes it for a failure."""


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--conf`` and ``--verbose``; the function gets ``config`` in their place.

    On a group the function is called without it: the subcommands read the file, once.
    """

    @verbose_option
    @click.option(
        "--conf", type=click.Path(path_type=Path), metavar="FILE",
        help="Configuration file; DBLAKE_CONF if not given.",
    )
    @functools.wraps(function)
    def wrapper(conf: Path | None, **options: Any) -> Any:
        context = click.get_current_context()
        if isinstance(context.command, click.Group):
            context.obj = conf
            return function(**options)
        named = conf or context.obj or os.environ.get("DBLAKE_CONF")
        if not named:
            raise UsageError(
                "no configuration file", next_step="give --conf FILE or set DBLAKE_CONF; conf/ has files to start from"
            )
        return function(config=load_config(Path(named)), **options)

    return wrapper


def verbose_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--verbose`` alone, for the jobs that need no configuration file."""

    def set_up(context: click.Context, _: click.Parameter, verbose: bool) -> None:
        if verbose or context.parent is None:
            _set_up_logging(verbose)

    option = click.option(
        "--verbose", is_flag=True, expose_value=False, is_eager=True, callback=set_up,
        help="More detail on stderr; tracebacks may show values.",
    )
    return option(function)


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets, once; the second one interrupts. For jobs that stop at a safe place."""
    event = threading.Event()
    asked = False

    def request(signum: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise _Stopped if signum == signal.SIGTERM else KeyboardInterrupt
        asked = True
        # Not event.set() here: a handler runs in the main thread, which may be inside event.wait() and hold the very
        # lock that set() takes. Not threading.Thread either, whose start() takes locks of its own.
        _thread.start_new_thread(event.set, ())

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_job(command: click.Command) -> NoReturn:
    """Runs a job and ends the process with the exit code its ending stands for.

    A command may return an exit code of its own; None is 0.
    """
    stopping = False

    def stop(_signum: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        raise _Stopped

    _end_after_sigterm(command.name or "job")
    signal.signal(signal.SIGTERM, stop)
    code: int
    try:
        # Not command.main: it has endings of its own for Ctrl-C and for a reader that goes away.
        with command.make_context(f"./spark-submit.sh {command.name}", sys.argv[1:]) as context:
            result = command.invoke(context)
        code = result if isinstance(result, int) else ExitCode.DONE
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the one place where every ending is given its exit code
        # While stopping, what breaks breaks because of it: connections and the JVM may go first.
        code = ExitCode.DONE if stopping else _ending(command.name or "job", error)
    sys.exit(int(code))


def _end_after_sigterm(job: str) -> None:
    """End the process ``_STOP_SECONDS`` after SIGTERM if it has not ended by then.

    A Python signal handler runs only when the main thread returns from C code (libpq, delta-rs); the wakeup descriptor
    is written at once.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(read, 64):
            pass
        time.sleep(_STOP_SECONDS)
        _say(job, f"still busy {_STOP_SECONDS:.0f} s after SIGTERM; ends now. Next: start it again, it resumes")
        os._exit(ExitCode.DONE)

    threading.Thread(target=watch, name="stop", daemon=True).start()


def _ending(job: str, error: BaseException) -> int:
    """Says on stderr how the job ended and returns the exit code."""
    if isinstance(error, _Stopped):
        return ExitCode.DONE
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _say(job, "interrupted")
        return _INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader of our output has seen enough (`sql … | head`); the interpreter's last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    if isinstance(error, click.ClickException):
        _say(job, f"{error.format_message().rstrip('.')}. Next: see ./spark-submit.sh {job} --help")
        return ExitCode.USAGE
    if _bug_detail:
        traceback.print_exception(error)
    if isinstance(error, DblakeError):
        _say(job, str(error))
        return error.exit_code
    why = _passing(error)
    if why:
        _say(job, f"{why} ({type(error).__name__} {_place(error)}). Next: see to that, then run again")
        return ExitCode.TRY_AGAIN
    _say(job, f"unexpected {type(error).__name__} {_place(error)}; this is a bug. "
              "Next: run again with --verbose and report what it shows")
    return ExitCode.BUG


_AWAY = "the warehouse's storage does not answer, or Spark's machines do not"
#: What is no bug of ours, though nobody expected it there: in words of the operating system, of Java and of Spark.
_REASONS = {
    "no space left on device": "a disk is full", "disk quota exceeded": "a disk is full",
    "outofmemoryerror": "Spark ran out of memory", "executorlostfailure": "Spark lost an executor",
    "answer from java side is empty": "Spark's JVM ended before the job: killed, for memory perhaps",
    "while trying to connect to the java server": "Spark's JVM ended before the job: killed, for memory perhaps",
    "connection refused": _AWAY, "connection reset": _AWAY, "timed out": _AWAY, "error sending request": _AWAY,
    "unknownhostexception": _AWAY, "name resolution": _AWAY,
}


def _passing(error: BaseException) -> str | None:
    """Why an error that is nobody's fault may be gone the next time; None if nothing says so."""
    theirs = type(error).__module__.partition(".")[0] in ("py4j", "pyspark", "deltalake", "_internal")
    if not theirs and not isinstance(error, OSError):
        return None
    text = str(error).lower()
    return next((reason for words, reason in _REASONS.items() if words in text), None)


def _say(job: str, message: str) -> None:
    line = " ".join(message.split())
    if _in_json():
        logging.getLogger("dblake").error(line, extra={"job": job})
    else:
        print(f"dblake {job}: {line}", file=sys.stderr, flush=True)


def _in_json() -> bool:
    return os.environ.get("DBLAKE_LOG") == "json"


def _place(error: BaseException) -> str:
    """The innermost line of ours that the exception passed: code, so never a value."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    return f"at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""


def _set_up_logging(verbose: bool) -> None:
    global _bug_detail
    _bug_detail = verbose
    handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter
    if _in_json():
        formatter = JsonFormatter("{levelname}{name}{message}", style="{", timestamp="at", rename_fields=_JSON_NAMES)
    else:
        form = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
        formatter = logging.Formatter(form, "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for ours in ("dblake", "pipelines"):
        logging.getLogger(ours).setLevel(logging.DEBUG if verbose else logging.INFO)
