"""Start the Spark session of a job or a test.

A job that a user's own ``spark-submit`` started finds its JVM running, and adds each of our settings that the user did
not give; otherwise ``jvm`` starts one. Guarantee: jobs, tests and notebooks run with the same settings. Settings for
``local`` masters apply only where none were given.

Runners take a ``Session``, a function, and call it when they have work for Spark: before that no JVM starts, and
PySpark is not imported, which takes a second.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from dblake.base.core.processes import stop_process
from dblake.installation import spark_defaults
from dblake.transform.spark.jvm import GATEWAY, start_jvm
from dblake.transform.spark.master import EVERY_CORE, MASTER, configured_master, is_local_master, local_settings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Session = Callable[[], "SparkSession"]
"""Returns the session, and starts Spark if it does not run yet."""
Engine = Literal["auto", "spark"]
"""Where rows are decoded, joined, folded and written: ``auto`` where it is cheapest, ``spark`` in Spark tasks alone."""

_START = threading.Lock()
_SILENCE_SECONDS, _JVM_STOP_SECONDS = 1.0, 3.0


@dataclass(frozen=True, slots=True)
class EngineSession:
    """A session for a choice of engine."""

    start: Session
    engine: Engine

    def __call__(self) -> SparkSession:
        """Return the session, and start Spark if it does not run yet."""
        return self.start()


def session_of(
    app: str, warehouse: str = "", engine: Engine = "auto", *, is_short: Callable[[], bool] = lambda: False
) -> EngineSession:
    """Return the function that returns the active session or starts one.

    ``is_short``: whether the job will end before code that the JVM optimizes pays off; called when Spark starts.
    """
    return EngineSession(lambda: _session(app, warehouse, {}, is_short=is_short), engine)


def takes_all_work(session: Session) -> bool:
    """Return True if all work on rows belongs in Spark tasks, whatever its size."""
    return isinstance(session, EngineSession) and session.engine == "spark"


def as_session(spark: SparkSession | Session) -> Session:
    """Return a function that returns the session, given either."""
    return spark if callable(spark) else lambda: spark


def spark_session(app: str, warehouse: str = "", **settings: str) -> SparkSession:
    """Return the active session or start one that reaches ``warehouse``.

    ``settings`` are Spark's (``**{"spark.master": "local[2]"}``).
    """
    return _session(app, warehouse, settings)


def _session(
    app: str, warehouse: str, settings: dict[str, str], *, is_short: Callable[[], bool] = lambda: False
) -> SparkSession:
    # Delta's conflicts are exceptions of their own only once this is imported.
    import delta.exceptions  # noqa: F401
    from pyspark.sql import SparkSession

    from dblake.transform.spark.storage import require_storage

    with _START:
        # Of another thread there is no active session, but one that it would get.
        running = SparkSession.getActiveSession() or (SparkSession.builder.getOrCreate() if is_running() else None)
        if running is None:
            return _start_session(app, warehouse, settings, is_short=is_short())
        require_storage(running, warehouse)
        return running


def _start_session(app: str, warehouse: str, settings: dict[str, str], *, is_short: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    from dblake.transform.spark.storage import require_jars, storage_jars, storage_settings, trust_authority

    # A user's own spark-submit has started the JVM with its jars.
    has_jvm = GATEWAY in os.environ
    started = start_jvm(settings, [] if has_jvm else storage_jars(warehouse), is_short=is_short)
    configured = spark_defaults() | started | storage_settings(warehouse)
    master = configured.setdefault(MASTER, EVERY_CORE)
    if is_local_master(master):
        configured = local_settings(master) | configured
    builder = SparkSession.builder.appName(app)
    for key, value in configured.items():
        builder = builder.config(key, value)
    with _kept_handlers():
        session = builder.getOrCreate()
    if has_jvm:
        require_jars(session, warehouse)
    trust_authority(session, warehouse)
    session.sparkContext.setLogLevel("WARN")
    return session


def is_local(session: Session) -> bool:
    """Return True if the session's executors are this machine. Starts Spark only below ``spark-submit``'s JVM."""
    if is_running():
        from pyspark import SparkContext

        context = SparkContext._active_spark_context
        return context is not None and is_local_master(context.master)
    if GATEWAY in os.environ:
        return is_local_master(session().sparkContext.master)
    return is_local_master(configured_master())


@contextmanager
def _kept_handlers() -> Iterator[None]:
    """Keep the process's handler of SIGINT: PySpark's cancels all Spark jobs, which fills the terminal with traces.

    Restoring it afterwards would be too late for a signal that comes while the session starts.
    """
    context: Any = import_module("pyspark.core.context")
    real = context.signal
    context.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=signal.SIGINT)
    try:
        yield
    finally:
        context.signal = real


def end_jvm() -> None:
    """End the JVM that this process has started, within seconds; without a word of it about what that breaks off."""
    pyspark = sys.modules.get("pyspark")
    # Another thread may be importing PySpark: its attributes are there later than the module.
    gateway = getattr(getattr(pyspark, "SparkContext", None), "_gateway", None)
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    context = _active_context()
    if context is not None:
        # Its connection to the JVM breaks, which it would report with a traceback.
        if server := context._accumulatorServer:
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
        silent = threading.Thread(target=_silence, args=(context,), daemon=True)
        silent.start()
        silent.join(_SILENCE_SECONDS)
    stop_process(process, _JVM_STOP_SECONDS)


def _silence(context: SparkContext) -> None:
    with suppress(Exception):
        context.setLogLevel("OFF")


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the class of Spark's errors, for ``except``; none while nothing has imported PySpark."""
    error = getattr(sys.modules.get("pyspark.errors"), "PySparkException", None)
    return (error,) if error else ()


def cancel_jobs() -> None:
    """Cancel all Spark jobs of this process."""
    context = _active_context()
    if context is not None:
        context.cancelAllJobs()


def is_running() -> bool:
    """Return True if this process has started Spark."""
    return _active_context() is not None


def _active_context() -> SparkContext | None:
    """Return this process's SparkContext; None also while another thread is importing PySpark."""
    return getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None)
