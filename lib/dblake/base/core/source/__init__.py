"""What capture requires of a database: small protocols, the same for PostgreSQL, MySQL, MariaDB and the memory twin.

Guarantee: a source frames and does not decode. It returns Arrow rows in the shape of ``landing.columns.CAPTURED``
with the few facts that capture needs: where to resume the log, and which watermarks the log contains.
``log`` reads the change log, ``chunks`` reads tables, ``catalog`` describes tables, ``prerequisites`` checks the
server. A caller that needs one of them takes that protocol, not ``Source``.
"""

from __future__ import annotations

from typing import Protocol

from dblake.base.core.source.catalog import Catalog, ColumnFingerprint, LogRetention, TableFingerprint
from dblake.base.core.source.chunks import (
    HEARTBEAT_ROW,
    ChunkRead,
    ChunkReader,
    ChunkRequest,
    ChunkSource,
    SuppliedRows,
)
from dblake.base.core.source.log import LogPiece, LogSource, LogStream, ServerIdentity, WatermarkSeen
from dblake.base.core.source.prerequisites import Check, InitPlan, Prerequisites, UnfitTable

__all__ = [
    "HEARTBEAT_ROW", "Catalog", "Check", "ChunkRead", "ChunkReader", "ChunkRequest", "ChunkSource",
    "ColumnFingerprint", "InitPlan", "LogPiece", "LogRetention", "LogSource", "LogStream", "Prerequisites",
    "ServerIdentity", "Source", "SuppliedRows", "TableFingerprint", "UnfitTable", "WatermarkSeen",
]  # fmt: skip


class Source(LogSource, ChunkSource, Catalog, Prerequisites, Protocol):
    """A database that capture replicates: all four protocols over one set of settings."""

    name: str
    """The source's name in the configuration."""
