"""The settings of capture, as values. ``config`` documents each key and holds its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NewTables = Literal["dump", "ask", "ignore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """When a batch is committed, whether stale tables are dumped, and how long to wait for an idle or failing source.

    With ``redump`` capture queues a dump of every table that changed without row events; otherwise it only reports it.
    ``new_tables`` likewise decides about tables that are new or return.
    """

    max_bytes: int
    max_rows: int
    commits_per_second: float
    heartbeat_seconds: float
    redump: bool
    new_tables: NewTables
    reconnect_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpSettings:
    """How a dump reads: rows per chunk, concurrent readers, and the limits of each reader.

    ``delay`` is the minimum pause between two chunks, in seconds; ``share`` is the maximum fraction of its time that a
    reader works. While a watermark takes longer than ``max_latency`` seconds to write, the database counts as
    overloaded and the pauses grow. ``max_removed`` is the largest share of a table's rows that a dump deletes whose
    cause removes none.
    """

    chunk_size: int
    delay: float
    readers: int
    share: float
    max_latency: float | None
    max_removed: float
