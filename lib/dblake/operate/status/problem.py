"""One open problem of a source, as ``status`` lists it.

Place: below the modules that find problems; ``report`` collects them.
"""

from __future__ import annotations

from typing import Any


def problem(code: str, table: str | None, detail: str, next_step: str) -> dict[str, Any]:
    """Return a problem; scripts rely on ``code`` and the keys. ``table`` is None if it concerns the whole source."""
    return {"code": code, "table": table, "detail": detail, "next": next_step}
