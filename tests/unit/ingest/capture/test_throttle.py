"""A chunk reader's pauses: by its share of the time, and by how slowly the database writes watermarks."""

from __future__ import annotations

from typing import Any

import pytest

from dblake.config import DumpConfig
from dblake.ingest.capture.settings import DumpSettings
from dblake.ingest.capture.throttle import DumpThrottle, Throttle


def settings(**values: Any) -> DumpSettings:
    """Return the configuration's defaults with some values replaced."""
    return DumpSettings(**DumpConfig(**values).model_dump())


@pytest.mark.parametrize(("configured", "throttle", "pause"), [
    (settings(), Throttle(), 0.0),
    (settings(delay=0.5), Throttle(), 0.5),
    (settings(delay=0.5), Throttle(delay=0.0), 0.0),
    (settings(share=0.25), Throttle(), 6.0),
    (settings(delay=7.0, share=0.25), Throttle(), 7.0),
    (settings(share=0.25), Throttle(share=0.5), 2.0),
], ids=["defaults", "delay", "throttled delay", "share", "delay above share", "throttled share"])
def test_pause_after_two_second_chunk(configured: DumpSettings, throttle: Throttle, pause: float) -> None:
    assert DumpThrottle(configured).pause_after(throttle, worked=2.0, latency=9.0) == pause


def test_pause_doubles_while_latency_is_high_then_halves() -> None:
    throttle = DumpThrottle(settings(max_latency=0.1))
    latencies = [0.05, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05]
    pauses = [throttle.pause_after(Throttle(), worked=1.0, latency=latency) for latency in latencies]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.0]


def test_backoff_is_at_most_half_a_minute() -> None:
    throttle = DumpThrottle(settings(max_latency=0.1))
    assert [throttle.pause_after(Throttle(), worked=9.0, latency=1.0) for _ in range(4)] == [9.0, 18.0, 30.0, 30.0]
    assert throttle.pause_after(Throttle(max_latency=2.0), worked=9.0, latency=1.0) == 15.0
