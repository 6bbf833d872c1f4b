"""One prerequisite as preflight finds it: met, met with something to know, or what is wrong and what mends it."""

from __future__ import annotations

from collections.abc import Iterable

from dblake.core.source import Check


def finding(name: str, detail: str = "", fix: str = "", *, known: bool = False) -> Check:
    """A check that is met if there is no detail. ``known``: the detail is worth knowing and stops nothing."""
    return Check(name, known or not detail, detail, fix if detail else "")


def script(statements: Iterable[str]) -> str:
    """Several statements as one text, a line each."""
    return "\n".join(f"{statement};" for statement in statements)
