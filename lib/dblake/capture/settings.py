"""What may be set about capture; ``config`` documents each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """When a batch is committed, what is dumped unasked, and how long an idle or failing source is waited for."""

    max_bytes: int = 16 << 20
    max_rows: int = 200_000
    commits_per_second: float = 1.0
    heartbeat_seconds: float = 10.0
    reconnect_seconds: float = 300.0
    redump: bool = True
    """Tables that changed without row events are dumped again, not only named."""


@dataclass(frozen=True, slots=True)
class DumpSettings:
    """How a dump reads: rows a chunk, readers at work at once, and what each of them keeps to.

    ``delay`` is the least rest between two chunks, in seconds, ``share`` how much of its time a reader may be at work.
    While a watermark takes longer than ``max_latency`` seconds to write, the database is taken to be busy, and readers
    rest longer and longer.
    """

    chunk_size: int = 50_000
    delay: float = 0.0
    readers: int = 1
    share: float = 1.0
    max_latency: float | None = None
