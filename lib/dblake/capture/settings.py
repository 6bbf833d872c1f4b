"""What may be set about capture; ``config`` documents each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """When a batch is committed, and how long an idle or failing source is waited for."""

    max_bytes: int = 16 << 20
    max_rows: int = 200_000
    commits_per_second: float = 1.0
    heartbeat_seconds: float = 10.0
    reconnect_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class DumpSettings:
    """How a dump reads: rows a chunk, seconds of rest between two chunks of a reader, readers at work at once."""

    chunk_size: int = 50_000
    delay: float = 0.0
    readers: int = 1
