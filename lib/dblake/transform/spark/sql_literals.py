"""Write names, strings, times and positions as Spark SQL text.

Guarantee: no name or string of the source can end its quotes.
"""

from __future__ import annotations

from datetime import datetime

from dblake.base.core.position import Position


def identifier(name: str) -> str:
    """Return a column or view name, quoted."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a string as a literal, with quotes and backslashes escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def delta(path: str, version: int | None = None) -> str:
    """Return a Delta table by its path; with ``version``, as of that version."""
    return f"delta.{identifier(path)}" + ("" if version is None else f" VERSION AS OF {version}")


def position(value: Position) -> str:
    """Return a position, comparable with ``state_at``."""
    return f"named_struct('incarnation', {value.incarnation}L, 'lsn', {value.lsn}L, 'seq', {value.seq}L)"


def instant(moment: datetime) -> str:
    """Return a time; ``moment`` has a zone."""
    return f"timestamp_micros({int(moment.timestamp() * 1_000_000)}L)"


def state_at(alias: str) -> str:
    """Return SQL for the position of a row of state, or of a fold, with a table alias."""
    return (
        f"named_struct('incarnation', {alias}._incarnation, 'lsn', {alias}._lsn, 'seq', {alias}._seq)"
    )
