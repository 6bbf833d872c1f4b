"""Checking that a database is prepared for capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Affects = Literal["source", "log", "dump", "followed", "nothing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One prerequisite: met, or what is wrong (``detail``) and the statement that corrects it (``fix``).

    A check that is ``ok`` and has a detail is met and carries information. ``tables`` maps the tables that do not meet
    it to the reason. ``affects`` names what an unmet check makes impossible:

    - ``source``: capturing the source at all
    - ``log``: following the log of ``tables``, which lacks changes of them
    - ``followed``: the same for those of ``tables`` that were followed before; others are left out in silence
    - ``dump``: a dump of ``tables``
    - ``nothing``
    """

    check: str
    ok: bool
    detail: str = ""
    fix: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    affects: Affects = "source"


@dataclass(frozen=True, slots=True)
class UnfitTable:
    """Why a table cannot be captured now, while others can.

    ``has_log`` is true if the log still has all its changes, so that only dumps are impossible.
    ``is_ignored_if_new`` is true if a table that was never followed is left out in silence.
    """

    reason: str
    has_log: bool = False
    is_ignored_if_new: bool = False


@dataclass(frozen=True, slots=True)
class InitPlan:
    """What ``preflight --init`` executes, as SQL without a password, and what it leaves to a person to decide."""

    statements: tuple[str, ...]
    warnings: tuple[str, ...]


class Prerequisites(Protocol):
    """The prerequisites of capturing a database."""

    def preflight(self) -> list[Check]:
        """Return every prerequisite, met or not."""

    def require(self) -> Mapping[str, UnfitTable]:
        """Return the captured tables that do not meet their prerequisites.

        Raises PrerequisitesNotMet, naming all of them, if those of the whole source are not met.
        """
