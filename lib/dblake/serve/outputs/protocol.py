"""What an output and a format are: the contract of the built-in ones and of custom classes.

Place: between ``consume``, which calls outputs with whole transactions in commit order, and the modules beside this
one. Delivery is at least once: after a failure or a restart, ``write`` gets transactions again from the last
checkpoint. An output that stores the checkpoint together with the rows, and returns it from ``open``, has exactly-once
effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dblake.serve.consume.model import Control, Event, Transaction


class Format(Protocol):
    """How events become bytes. ``event.schema`` has the columns, types and key; a format keeps no other state."""

    def encode(self, event: Event) -> bytes | None:
        """Return the event as one record, without a line end; None if the format has no record for it."""

    def encode_key(self, event: Event) -> bytes | None:
        """Return the event's primary key as a record key; None for a table without a key, and for a truncate."""

    def encode_control(self, control: Control) -> bytes | None:
        """Return a control entry as one record; None if the format has none for it."""


def require_no_lease() -> None:
    """Do nothing: no other process shares what the output delivers."""


@dataclass(frozen=True, slots=True)
class OutputContext:
    """What every output is constructed with, before its own settings as keyword arguments.

    ``name`` is the output's key under ``outputs``, ``sources`` are the names of the subscribed sources.
    ``secrets`` holds the resolved secrets of its settings by key; they must not appear in messages. ``require_lease``
    raises ProgressUnavailable once another process may deliver the same rows: ``write`` calls it before each request
    or message, because one write may take longer than a lease. ``partitions`` is the number of hash partitions of the
    output's group, if it has one.
    """

    name: str
    sources: Sequence[str]
    format: Format
    secrets: Mapping[str, str] = field(default_factory=dict)
    require_lease: Callable[[], None] = require_no_lease
    partitions: int | None = None


class Output(Protocol):
    """A target. One thread calls all methods; ``write`` and ``close`` only after ``open``.

    ``open`` and ``write`` raise errors of ``core.errors``. After a retryable one (exit code 75) delivery resumes with
    back-off from the last checkpoint, after ``close`` and ``open``. ``EventRejected`` names one event that can never be
    written; it becomes a dead letter. Any other error stops the output.

    An output whose target holds the checkpoint has an attribute ``holds_checkpoint`` that is True: if ``open`` then
    returns None, delivery begins at the start, whatever was stored elsewhere.

    An output may have a method ``expire(source, upto)``, called between writes: no event at or before that position is
    delivered again, except rows of a bootstrap at a later one. It may forget what it keeps to recognize such events.
    """

    def open(self) -> str | None:
        """Connect; return the checkpoint that the target itself holds, or None if it holds none."""

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        """Write whole transactions, control entries among them; durable on return, ordered per key.

        ``checkpoint`` is the point after the last of them. In a group they are of one ``Transaction.partition``.
        """

    def close(self) -> None:
        """Release the connection; what ``write`` has returned for stays."""
