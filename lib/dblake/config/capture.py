"""The sections ``capture`` and ``dump``: how the log and the rows of tables land.

Place: sections of ``models``. Where the database is and which tables are captured is left to ``source``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dblake.base.core import defaults
from dblake.config.section import Section

_COMMITS_PER_SECOND = {"default": defaults.COMMITS_PER_SECOND, "low_latency": 20.0}


class CaptureConfig(Section):
    """How capture writes landing, and what it does about tables that appear or change."""

    profile: Literal["default", "low_latency"] = Field(
        "default", description="Landing commits: default at most 1 a second, low_latency at most 20."
    )
    max_bytes: int = Field(
        defaults.MAX_BATCH_BYTES, ge=1024, description="Payload bytes after which a landing batch is committed."
    )
    max_rows: int = Field(defaults.MAX_BATCH_ROWS, ge=1, description="Rows after which a landing batch is committed.")
    commits_per_second: float | None = Field(
        None, gt=0, le=100, description="Maximum landing commits per second; null: set by the profile."
    )
    heartbeat_seconds: float = Field(
        defaults.HEARTBEAT_SECONDS, gt=0,
        description="Interval between heartbeat writes, which let the database release log while captured tables are "
                    "idle.",
    )
    redump: Literal["auto", "ask"] = Field(
        "auto", description="Tables that changed without row events: auto re-dumps them, ask only reports them."
    )
    new_tables: Literal["dump", "ask", "ignore"] = Field(
        "dump",
        description="Tables that are new, or return: dump reads their rows at once, ask reports them until they are "
                    "dumped, ignore follows them from now on. One that was complete and suspended is re-dumped as "
                    "capture.redump requires.",
    )

    @property
    def commit_rate(self) -> float:
        """The maximum number of landing commits per second."""
        return self.commits_per_second or _COMMITS_PER_SECOND[self.profile]


class DumpConfig(Section):
    """How tables are read while the log is followed."""

    chunk_size: int = Field(
        defaults.CHUNK_ROWS, ge=1, description="Maximum rows per chunk; chunks of wide rows stop at about 16 MiB."
    )
    delay: float = Field(
        defaults.CHUNK_DELAY_SECONDS, ge=0, description="Pause between two chunks of one reader, in seconds."
    )
    readers: int = Field(
        defaults.CHUNK_READERS, ge=1, le=8, description="Concurrent chunk readers, each with its own connection."
    )
    max_removed: float = Field(
        defaults.MAX_REMOVED_SHARE, ge=0, le=1,
        description="Largest share of a table's rows that the end of a dump deletes because it did not return them; if "
                    "there are more, it deletes none, and `status` names them. `dump start --remove` lifts the limit.",
    )
    share: float = Field(defaults.READER_SHARE, gt=0, le=1, description="Share of its time that a reader may work.")
    max_latency: float | None = Field(
        None, gt=0,
        description="Readers back off while writing a watermark takes longer than this, in seconds; null: never.",
    )
