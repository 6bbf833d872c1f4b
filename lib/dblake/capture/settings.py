"""What may be set about capture; ``config`` documents each."""

from __future__ import annotations

from dataclasses import dataclass

from dblake.core import defaults


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """When a batch is committed, what is dumped unasked, and how long an idle or failing source is waited for."""

    max_bytes: int = defaults.MAX_BATCH_BYTES
    max_rows: int = defaults.MAX_BATCH_ROWS
    commits_per_second: float = defaults.COMMITS_PER_SECOND
    heartbeat_seconds: float = defaults.HEARTBEAT_SECONDS
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

    chunk_size: int = defaults.CHUNK_ROWS
    delay: float = defaults.CHUNK_DELAY_SECONDS
    readers: int = defaults.CHUNK_READERS
    share: float = defaults.READER_SHARE
    max_latency: float | None = None
