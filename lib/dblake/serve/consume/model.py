"""What a subscriber receives: events, whole transactions and control entries.

Place: between ``subscription``, which builds them from Delta tables, and applications or ``outputs``. Images hold the
source's own canonical text: **an absent column was not sent, None is NULL**. ``Event.values`` types an image by the
event's schema version; ``Event.schema`` is the schema that the row was written with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.serve.consume.values import Value, read_image

Image = Mapping[str, str | None]
"""Column → the source's text; None is NULL, an absent column was not sent."""

STATE = "state"
"""``Event.origin`` of a row that a bootstrap read from a state table; others are ``log`` and ``dump``."""


class ControlKind(StrEnum):
    """The kinds of control entries; ``docs/consumers.md`` states what a consumer does at each."""

    BOOTSTRAP_STARTED = "bootstrap_started"
    BOOTSTRAP_FINISHED = "bootstrap_finished"
    CONSOLIDATED_STARTED = "consolidated_started"
    CONSOLIDATED_FINISHED = "consolidated_finished"
    SCHEMA = "schema"
    GAP = "gap"
    INCARNATION = "incarnation"
    REDECODED = "redecoded"
    CHECKPOINT = "checkpoint"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Control:
    """A control entry in the stream. ``details`` are further facts, never row values."""

    kind: ControlKind
    source: str
    position: Position
    table: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Event:
    r"""One change of one row.

    ``op`` is ``c`` create, ``u`` update, ``d`` delete, ``r`` a row read by a dump or a bootstrap, ``f`` a fill (only
    the columns that it supplies), ``t`` truncate. ``key`` is None without a primary key, and for a truncate.
    ``last_in_transaction`` is True for the last event of its transaction that the subscription delivers.
    ``key_before`` is the old key where a change of the key made this create; columns that it lacks keep the values that
    the row of the old key had.
    ``undecoded`` names columns whose bytes are not valid text: their values are ``\x`` and hex digits.
    """

    source: str
    table: str
    op: str
    position: Position
    key: Image | None
    before: Image | None
    after: Image | None
    txid: str | None
    committed_at: datetime | None
    last_in_transaction: bool
    origin: str
    schema_id: str
    schema: TableSchema
    undecoded: Sequence[str] = ()
    key_before: Image | None = None

    def values(self, image: Literal["key", "key_before", "before", "after"] = "after") -> dict[str, Value] | None:
        """Return an image with typed values; a text that its type cannot hold stays a str. None without the image."""
        texts: Image | None = getattr(self, image)
        return None if texts is None else read_image(texts, self.schema, self.undecoded)


@dataclass(slots=True)
class Transaction:
    """A whole transaction of the source, rows of one chunk or of a bootstrap, or (without events) a control entry.

    ``position`` is its last event's; a subscription that resumes from it continues with the next transaction.
    ``events`` may be backed by a temporary file: iterate over it rather than copying it. ``bootstrap`` identifies the
    bootstrap that it is part of; it is empty outside one. ``partition`` is the number of the hash partition that a
    group delivers: ``events`` has only the transaction's rows in that partition.
    """

    source: str
    position: Position
    committed_at: datetime | None
    events: Sequence[Event] = ()
    control: Control | None = None
    bootstrap: str = ""
    partition: int | None = None
    make_checkpoint: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def checkpoint(self) -> str:
        """The opaque text from which a subscription resumes after this transaction."""
        return self.make_checkpoint()
