"""What a sensor waits for, decided by the document of ``status``; free of Airflow.

Place: ``sensors`` evaluates a condition in a worker, ``triggers`` in the triggerer, both with this function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from dblake.base.core.position import Position


class WaitFailed(Exception):
    """What is waited for can no longer come."""


class Condition(TypedDict, total=False):
    """One of: a stage's lag of at most ``seconds``, a stage that has reached ``point``, the end of dump ``dump``."""

    stage: str
    seconds: float
    point: str
    dump: str


def is_met(condition: Condition, document: Mapping[str, Any]) -> bool:
    """Return True if the document of ``status`` shows that a condition holds. Raises WaitFailed for a failed dump."""
    if "dump" in condition:
        return _has_ended(condition["dump"], document["dumps"])
    stage = document["stages"][condition["stage"]]
    if "point" in condition:
        return stage["position"] is not None and _transaction(stage["position"]) >= _transaction(condition["point"])
    lag = stage["lag_seconds"]
    return lag is not None and lag <= condition["seconds"]


def require_point(text: str) -> None:
    """Raise ValueError unless a text is a position, ``incarnation/lsn`` or ``incarnation/lsn/seq``."""
    Position.parse(text)


def _transaction(point: str) -> tuple[int, int]:
    """Return what orders transactions: a stage reaches whole ones."""
    position = Position.parse(point)
    return position.incarnation, position.lsn


def _has_ended(dump: str, dumps: list[Mapping[str, Any]]) -> bool:
    tables = [entry for entry in dumps if entry["id"] == dump]
    if not tables:
        raise WaitFailed(f"there is no dump {dump}")
    bad = [f"{entry['table']}: {entry['state']}" for entry in tables if entry["state"] in ("failed", "cancelled")]
    if bad:
        raise WaitFailed(f"dump {dump} has ended without {', '.join(bad)}")
    return all(entry["state"] == "done" for entry in tables)
