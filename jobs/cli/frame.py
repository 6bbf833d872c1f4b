"""The frame of every job: common options, logging, signals, and the exit code of every ending.

A job module declares a click command and ends with ``run_job(command)``::

    @click.command("reconcile")
    @job_options
    @click.option("--once", is_flag=True, help="…")
    def reconcile(config: Config, once: bool) -> None:
        "Turn landing into events."

``job_options`` adds ``--conf`` and ``--verbose`` and passes the loaded configuration; in a click group it decorates the
group and each subcommand, so that ``--conf`` may precede or follow the subcommand.

Guarantee: results go to stdout, all else to stderr. An error is one line there, ``dblake JOB: what. Next: …``; with
``DBLAKE_LOG=json`` every line is a JSON object, that of an error with ``next`` and ``code``. That line never holds row
values. Messages and tracebacks of unexpected exceptions might, so ``--verbose`` alone shows them. A job stopped by
SIGTERM ends with 0, by SIGINT with 130: one that must finish work in progress polls the event of ``stop_requested()``
and ends with 0, any other is interrupted and ends within seconds (``stop``). A job that has not ended 60 s after a
signal, because it waits for a database, storage or Spark in code that is not Python's, ends then: a restart is as safe
as after SIGKILL.
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

from dblake import __version__
from dblake.base.core.errors import DblakeError, ExitCode, UsageError
from dblake.base.core.extras import missing_extra
from dblake.base.core.intervals import Interval
from dblake.base.core.transient import storage_fault, transient_reason
from dblake.config import Config, load_config
from jobs.cli.observed import observed
from jobs.cli.stop import INTERRUPTED, Interruption, Stopped, end_now, exit_code, ignore_signals

_STOP_SECONDS = 60.0
"""Longer than capture needs to end at a transaction's end and to land what it has read."""
_REPEAT_SECONDS, _MAX_REPORTS = 3600.0, 1000
_JSON_NAMES = {"levelname": "level", "name": "logger"}
_FILE = "dblake.configuration_file"
_OURS = ("dblake", "pipelines")
_shows_tracebacks = False
_is_stopped = False
_interruption = Interruption()
_ending_signals = {signal.SIGTERM, signal.SIGINT}


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--conf`` and ``--verbose`` to a command, which receives ``config`` instead of them.

    A group's function is called without it: each subcommand loads the file. A group that works without a subcommand
    receives it, and is not called before one.
    """

    @verbose_option
    @conf_option
    @functools.wraps(function)
    def wrapper(conf: Path | None, **options: Any) -> Any:
        context = click.get_current_context()
        if isinstance(context.command, click.Group):
            context.obj = conf
            if not context.command.invoke_without_command:
                return function(**options)
            if context.invoked_subcommand:
                _reject_options_before(context)
                return None
        config = use_configuration(conf or context.obj)
        with observed(config, context.command.name or "", options, lambda: _is_stopped):
            return function(config=config, **options)

    return wrapper


def conf_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--conf`` alone, for a job that may run without one."""
    return click.option(
        "--conf", type=click.Path(path_type=Path), metavar="FILE", help="Configuration file; default: DBLAKE_CONF.",
    )(function)


def use_configuration(conf: Path | None) -> Config:
    """Load the running command's configuration, by default from the file that DBLAKE_CONF names. Raises UsageError."""
    file = conf or os.environ.get("DBLAKE_CONF")
    if not file:
        raise UsageError(
            "no configuration file", next_step="give --conf FILE or set DBLAKE_CONF; conf/ has files to start from"
        )
    click.get_current_context().meta[_FILE] = Path(file)
    return load_config(Path(file))


def _reject_options_before(context: click.Context) -> None:
    """Raise UsageError if options of the group's own work precede a subcommand, which would ignore them."""
    given = [name for name in context.params if name != "conf"
             and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        option = "--" + given[0].removeprefix("as_").replace("_", "-")
        raise UsageError(f"{option} does not go with {context.invoked_subcommand}", next_step="omit it")


def configuration_file() -> Path:
    """Return the file that the running command's configuration was loaded from."""
    file: Path = click.get_current_context().meta[_FILE]
    return file


def is_verbose() -> bool:
    """Return True if ``--verbose`` was given."""
    return _shows_tracebacks


def verbose_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--verbose`` and ``--version`` alone, for jobs without a configuration file."""

    def set_up(context: click.Context, _: click.Parameter, verbose: bool) -> None:
        if verbose or context.parent is None:
            _set_up_logging(verbose)

    option = click.option(
        "--verbose", is_flag=True, expose_value=False, is_eager=True, callback=set_up,
        help="Log details to stderr and show tracebacks, which may contain row values.",
    )
    return click.version_option(__version__, prog_name="dblake", message="%(prog)s %(version)s")(option(function))


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or Ctrl-C sets; the second one interrupts the job."""
    event = threading.Event()
    requested = False

    def request(signum: int, _: FrameType | None) -> None:
        global _is_stopped
        nonlocal requested
        _is_stopped = True
        if requested:
            _interruption.interrupt(signum, _)
        requested = True
        # Not event.set() here: a handler runs in the main thread, which may be inside event.wait() and hold the very
        # lock that set() takes. Not threading.Thread either, whose start() takes locks of its own.
        _thread.start_new_thread(event.set, ())

    previous = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def keep_running_after_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on and end nothing: the caller catches it. SIGTERM still ends."""
    _ending_signals.discard(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_job(command: click.Command) -> NoReturn:
    """Run a job and exit with the code of its ending. A command may return an exit code; None is 0."""
    # A descriptor of its own: the other one can be closed to native code without the loss of a log line.
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    _end_after_signal(command.name or "job")
    _silence_consequences()
    code: int = ExitCode.DONE
    try:
        code = _run(command)
    except BaseException:
        ignore_signals()
        if _interruption.number is None:
            raise
        # It came while the ending was reported.
    if _interruption.number is not None:
        end_now(exit_code(_interruption.number))
    sys.exit(int(code))


def _run(command: click.Command) -> int:
    """Run a command and return the exit code of its ending; from then on signals change nothing."""
    try:
        _interruption.handle_signals()
        # Not command.main: it has its own endings for Ctrl-C and a closed pipe.
        with command.make_context(f"./spark-submit.sh {command.name}", sys.argv[1:]) as context:
            result = command.invoke(context)
        ignore_signals()
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.DONE
    except BaseException as error:  # noqa: BLE001 - the one place that turns every ending into an exit code
        ignore_signals()
        ending = error
        # Errors during a stop are its consequence: connections and the JVM may end first.
        if _interruption.number is not None:
            ending = KeyboardInterrupt() if _interruption.number == signal.SIGINT else Stopped()
        return _report_ending(command.name or "job", ending)


def _silence_consequences() -> None:
    """Report no exception of destructors and threads once a signal has broken off what they do."""
    report_unraisable, report_thread = sys.unraisablehook, threading.excepthook

    def unraisable(fault: sys.UnraisableHookArgs) -> None:
        if _interruption.number is None:
            report_unraisable(fault)

    def of_thread(fault: threading.ExceptHookArgs) -> None:
        if _interruption.number is None:
            report_thread(fault)

    sys.unraisablehook, threading.excepthook = unraisable, of_thread


def _end_after_signal(job: str) -> None:
    """End the process ``_STOP_SECONDS`` after one of ``_ending_signals`` if it has not ended by then.

    A Python signal handler runs only when the main thread returns from C code (libpq, delta-rs); the wakeup descriptor
    is written at once.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def watch() -> None:
        while not (received := _ending_signals & set(os.read(read, 64))):
            pass
        time.sleep(_STOP_SECONDS)
        number = signal.Signals(max(received))  # SIGTERM, if it is among them
        after = f"{_STOP_SECONDS:.0f} s after {number.name}"
        _print_error(job, exit_code(number), f"still busy {after}; ends now", "start it again, it resumes")
        end_now(exit_code(number))

    threading.Thread(target=watch, name="stop", daemon=True).start()


def _report_ending(job: str, error: BaseException) -> int:
    """Print how the job ended and return the exit code."""
    if isinstance(error, Stopped):
        return ExitCode.DONE
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _print_error(job, INTERRUPTED, "interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader closed the pipe (`sql … | head`); the interpreter's last flush must not fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    if isinstance(error, click.ClickException):
        _print_error(
            job, ExitCode.USAGE, error.format_message().rstrip("."), f"see ./spark-submit.sh {job} --help"
        )
        return ExitCode.USAGE
    if _shows_tracebacks:
        traceback.print_exception(error)
    known = _as_known(error)
    if known is not None:
        _print_error(job, known.exit_code, known.what, known.next_step)
        return known.exit_code
    reason = transient_reason(error)
    if reason:
        _print_error(job, ExitCode.TRY_AGAIN, f"{reason} ({_origin(error)})", "remove the cause and run again")
        return ExitCode.TRY_AGAIN
    # For those who correct the code.
    where = f"{type(error).__name__} {_origin(error)}"
    _print_error(
        job, ExitCode.BUG, f"unexpected {where}; this is a bug", "run again with --verbose and report its output"
    )
    return ExitCode.BUG


def _as_known(error: BaseException) -> DblakeError | None:
    """Return the error with its next step, if ``error`` or its cause is one of ours."""
    if isinstance(error, DblakeError):
        return error
    if isinstance(error, ImportError):
        return missing_extra(error)
    fault = storage_fault(error)
    return fault.as_error() if fault else None


def _print_error(job: str, code: int, what: str, next_step: str = "") -> None:
    what, next_step = (" ".join(text.split()) for text in (what, next_step))
    if not _logs_json():
        line = f"{what}. Next: {next_step}" if next_step else what
        print(f"dblake {job}: {line}", file=sys.stderr, flush=True)
        return
    if not logging.getLogger().handlers:
        # The command line was not understood as far as the option that sets logging up.
        _set_up_logging(verbose=False)
    logging.getLogger("dblake").error(what, extra={"job": job, "next": next_step, "code": int(code)})


def _logs_json() -> bool:
    return os.environ.get("DBLAKE_LOG") == "json"


def _origin(error: BaseException) -> str:
    """Return the innermost line of our code on the exception's path; a line of code holds no row value."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    return f"at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return False for what other libraries log below warnings, and for the traces of what a signal has broken off.

    Some libraries set levels of their own; py4j logs the exception that a signal raises in its calls.
    """
    is_consequence = _interruption.number is not None and bool(record.exc_info)
    return not is_consequence and (record.levelno >= logging.WARNING or record.name.startswith(_OURS))


class _Repetitions(logging.Filter):
    """Drops a warning or error of ours that was logged in the last hour: a job that runs on names each problem once."""

    def __init__(self) -> None:
        super().__init__()
        self._reports: dict[tuple[str, str], Interval] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not record.name.startswith(_OURS) or record.name == "dblake":
            return True
        if len(self._reports) > _MAX_REPORTS:
            self._reports.clear()
        return self._reports.setdefault((record.name, record.getMessage()), Interval(_REPEAT_SECONDS)).is_due()


def _set_up_logging(verbose: bool) -> None:
    global _shows_tracebacks
    _shows_tracebacks = verbose
    handler = logging.StreamHandler(sys.stderr)
    formatter: logging.Formatter
    if _logs_json():
        formatter = JsonFormatter("{levelname}{name}{message}", style="{", timestamp="at", rename_fields=_JSON_NAMES)
    else:
        form = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
        formatter = logging.Formatter(form, "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    if not verbose:
        handler.addFilter(_is_wanted)
        handler.addFilter(_Repetitions())
    # It reports calls that a stop has broken off, with tracebacks.
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for package in _OURS:
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)
