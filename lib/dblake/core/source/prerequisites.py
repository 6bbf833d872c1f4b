"""Checking that a database is prepared for capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Check:
    """One prerequisite: met, or what is wrong (``detail``) and the statement that corrects it (``fix``).

    A check that is ``ok`` and has a detail is met and carries information.
    """

    check: str
    ok: bool
    detail: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class InitPlan:
    """What ``preflight --init`` executes, as SQL without a password, and what it leaves to a person to decide."""

    statements: tuple[str, ...]
    warnings: tuple[str, ...]


class Prerequisites(Protocol):
    """The prerequisites of capturing a database."""

    def preflight(self) -> list[Check]:
        """Return every prerequisite, met or not."""

    def require(self) -> None:
        """Raise PrerequisitesNotMet, naming all of them, if capture would miss changes without an error."""
