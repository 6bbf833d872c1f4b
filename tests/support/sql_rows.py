"""The rows of one SQL statement over a lake, as ``sql`` answers it."""

from __future__ import annotations

from typing import Any

from dblake.base.lake.layout import Paths
from dblake.serve.sql.engine import DuckdbEngine


def sql_rows(paths: Paths, statement: str, at: str | None = None) -> list[dict[str, Any]]:
    """Return the statement's rows, by column name; with ``at``, as of that point."""
    engine = DuckdbEngine(paths, at)
    rows: list[dict[str, Any]] = engine.prepare(statement).to_arrow().to_pylist()
    engine.close()
    return rows
