"""Defaults that the configuration file and the packages behind it share. Each is declared here and nowhere else."""

from __future__ import annotations

WATERMARK_SCHEMA = "dblake"

MAX_BATCH_BYTES = 16 << 20
MAX_BATCH_ROWS = 200_000
COMMITS_PER_SECOND = 1.0
HEARTBEAT_SECONDS = 10.0

CHUNK_ROWS = 50_000
CHUNK_DELAY_SECONDS = 0.0
CHUNK_READERS = 1
READER_SHARE = 1.0
MAX_REMOVED_SHARE = 0.1
