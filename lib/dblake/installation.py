"""Locate ``jobs``, ``pipelines`` and ``conf``, which surround the library, in a checkout or in an installed package.

A checkout has them beside ``lib/``; ``pip install`` puts them into ``dblake/_application``, so that no package called
``jobs`` appears among the user's own. Nothing here imports them.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def application_home() -> Path:
    """Return the folder that holds ``jobs``, ``pipelines`` and ``conf``."""
    checkout = _PACKAGE.parents[1]
    return checkout if (checkout / "jobs").is_dir() else _PACKAGE / "_application"


def import_paths() -> list[str]:
    """Return the folders from which ``dblake``, ``jobs`` and ``pipelines`` are imported."""
    return [str(_PACKAGE.parent), str(application_home())]
