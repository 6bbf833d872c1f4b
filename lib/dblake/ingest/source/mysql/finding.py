"""Builds preflight's checks: met, met with a note, or a problem with the statement that corrects it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from dblake.base.core.source import Check


def finding(
    name: str, detail: str = "", fix: str = "", *, is_note: bool = False, tables: Mapping[str, str] | None = None,
    affects: Literal["source", "log", "dump"] = "source",
) -> Check:
    """Return a check that is met if there is no detail; with ``is_note`` it is met in any case.

    ``tables`` and ``affects`` are those of Check.
    """
    affects = affects if tables else "source"
    return Check(name, is_note or not detail, detail, fix if detail else "", tables or {}, affects)


def script(statements: Iterable[str]) -> str:
    """Return several statements as one text, a line each."""
    return "\n".join(f"{statement};" for statement in statements)
