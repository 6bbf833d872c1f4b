"""How long tests of random histories, kills and load run: the usual time, or a multiple of it."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

EFFORT = int(os.environ.get("DBLAKE_EFFORT", "1"))
"""Multiplies the histories, rounds and seconds of slow tests; ``DBLAKE_EFFORT=10`` is for a release."""


def with_effort(*cases: Any) -> tuple[Any, ...]:
    """Return parameters that repeat a covered case: none at usual effort."""
    return cases if EFFORT > 1 else ()


def choose_seed() -> int:
    """Return the seed of ``DBLAKE_SEED``, with more effort one of the moment, else always the same; and print it."""
    seed = int(os.environ.get("DBLAKE_SEED") or (time.time_ns() % 100_000 if EFFORT > 1 else 1))
    print(f"DBLAKE_SEED={seed}")
    return seed


def seeds(short: int, slow: int) -> list[object]:
    """Return as many seeds as parameters of the short suite, and ``slow`` times the effort of the slow suite."""
    return [
        seed if seed < short else pytest.param(seed, marks=pytest.mark.slow) for seed in range(short + slow * EFFORT)
    ]
