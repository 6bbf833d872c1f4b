"""How long a chunk reader rests: by its share of the time, and by how late the database answers."""

from __future__ import annotations

import pytest

from dblake.capture.requests import Throttle
from dblake.capture.settings import DumpSettings
from dblake.capture.throttle import Pace


@pytest.mark.parametrize(("settings", "wanted", "rest"), [
    (DumpSettings(), Throttle(), 0.0),
    (DumpSettings(delay=0.5), Throttle(), 0.5),
    (DumpSettings(delay=0.5), Throttle(delay=0.0), 0.0),
    (DumpSettings(share=0.25), Throttle(), 6.0),
    (DumpSettings(delay=7.0, share=0.25), Throttle(), 7.0),
    (DumpSettings(share=0.25), Throttle(share=0.5), 2.0),
])
def test_a_chunk_that_took_two_seconds(settings: DumpSettings, wanted: Throttle, rest: float) -> None:
    assert Pace(settings).rest(wanted, worked=2.0, latency=9.0) == rest


def test_it_backs_off_while_the_database_is_late_and_comes_back() -> None:
    pace = Pace(DumpSettings(max_latency=0.1))
    latencies = [0.05, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05]
    rests = [pace.rest(Throttle(), worked=1.0, latency=latency) for latency in latencies]
    assert rests == [0.0, 1.0, 2.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.0]


def test_it_never_rests_longer_than_half_a_minute_for_that() -> None:
    pace = Pace(DumpSettings(max_latency=0.1))
    assert [pace.rest(Throttle(), worked=9.0, latency=1.0) for _ in range(4)] == [9.0, 18.0, 30.0, 30.0]
    assert pace.rest(Throttle(max_latency=2.0), worked=9.0, latency=1.0) == 15.0
