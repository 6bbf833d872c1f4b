"""Name the steps of a job's work, for a tracer that records how long each takes and what it handled.

Place: below every package that does work; ``progress.stage`` is a step that a person sees as well. A job sets the
tracer once. Guarantee: without one, as in tests and on executors, a step costs a comparison and records nothing. Facts
are counts, bytes, positions, and names of tables, chunks and outputs: never row values or secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Fact = str | int | float


class TracedStep(Protocol):
    """One step that is being traced."""

    def note(self, **facts: Fact) -> None:
        """Record facts about the step."""
        ...

    def drop(self) -> None:
        """Record nothing of the step: there was no work."""
        ...

    def end(self, error: BaseException | None) -> None:
        """End the step, with the error that left it."""
        ...


class Tracer(Protocol):
    """Records steps, in whatever threads they are."""

    def begin(self, name: str, parent: TracedStep | None) -> TracedStep:
        """Return a step that begins now, inside ``parent``; outside every other step if that is None."""
        ...


class _Untraced:
    """Records nothing of a step."""

    def note(self, **facts: Fact) -> None: ...

    def drop(self) -> None: ...

    def end(self, error: BaseException | None) -> None: ...


UNTRACED: TracedStep = _Untraced()
"""What a tracer returns for a step that it does not record."""
_tracer: Tracer | None = None
_current: ContextVar[TracedStep | None] = ContextVar("dblake_step", default=None)


def trace_to(tracer: Tracer | None) -> None:
    """Set this process's tracer; None records nothing."""
    global _tracer
    _tracer = tracer


@contextmanager
def step(name: str, **facts: Fact) -> Iterator[TracedStep]:
    """Trace the block as one step. ``name`` is ``package.work``, such as ``state.fold``."""
    if _tracer is None:
        yield UNTRACED
        return
    span = _tracer.begin(name, _current.get())
    span.note(**facts)
    outer = _current.set(span)
    try:
        yield span
    except BaseException as error:
        span.end(error)
        raise
    else:
        span.end(None)
    finally:
        # A generator with a step inside may be closed in another context, by another thread or the garbage collector:
        # that context never had the step.
        with suppress(ValueError):
            _current.reset(outer)


def in_step(function: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """Return a function whose steps are inside the current one, in whatever thread it is called."""
    outer = _current.get()
    if outer is None:
        return function

    def call(item: Item) -> Result:
        before = _current.set(outer)
        try:
            return function(item)
        finally:
            _current.reset(before)

    return call
