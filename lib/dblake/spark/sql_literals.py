"""How names, texts and positions are spelt in Spark SQL text, so that no name of a database can end its quotes."""

from __future__ import annotations

from datetime import datetime

from dblake.core.position import Position

#: The position of a row of events, as one comparable value.
EVENT_AT = "named_struct('incarnation', incarnation, 'lsn', lsn, 'seq', seq)"


def identifier(name: str) -> str:
    """A column or view name."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def texts(values: list[str] | tuple[str, ...]) -> str:
    """An array of strings, typed also when empty."""
    return f"array({', '.join(map(literal, values))})" if values else "cast(array() AS ARRAY<STRING>)"


def delta(path: str, version: int | None = None) -> str:
    """A Delta table by its path, as of a version if one is given."""
    return f"delta.{identifier(path)}" + ("" if version is None else f" VERSION AS OF {version}")


def position(at: Position) -> str:
    """A position, comparable with ``EVENT_AT`` and ``state_at``."""
    return f"named_struct('incarnation', {at.incarnation}L, 'lsn', {at.lsn}L, 'seq', {at.seq}L)"


def instant(moment: datetime) -> str:
    """A time that has a zone."""
    return f"timestamp_micros({int(moment.timestamp() * 1_000_000)}L)"


def state_at(alias: str) -> str:
    """The position a state row (or a folded one) stands at."""
    return (
        f"named_struct('incarnation', {alias}._incarnation, 'lsn', {alias}._lsn, 'seq', {alias}._seq)"
    )
