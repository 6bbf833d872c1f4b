"""How long tests of random histories, kills and load run: the usual time, or a multiple of it."""

from __future__ import annotations

import os

import pytest

EFFORT = int(os.environ.get("DBLAKE_EFFORT", "1"))
"""Multiplies the histories, rounds and seconds of slow tests; ``DBLAKE_EFFORT=10`` is for a release."""


def seeds(short: int, slow: int) -> list[object]:
    """Return as many seeds as parameters of the short suite, and ``slow`` times the effort of the slow suite."""
    return [
        seed if seed < short else pytest.param(seed, marks=pytest.mark.slow) for seed in range(short + slow * EFFORT)
    ]
