"""Drops and spikes: what differs from a table's own past is found, what recurs in it is not."""

from __future__ import annotations

import numpy as np
import pytest

from dblake.operate.report.episodes import DROP, SPIKE, Episode, find_episodes

DAY = 1440


def steady(rate: float, buckets: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).poisson(rate, buckets)


def find(counts: np.ndarray, shown_from: int = 0, until: int | None = None) -> list[Episode]:
    return find_episodes(counts.reshape(1, -1), shown_from, len(counts) if until is None else until)


def places(found: list[Episode]) -> list[tuple[str, int, int]]:
    return [(one.kind, one.begin, one.end) for one in found]


def test_drop_of_a_busy_table_is_found() -> None:
    counts = steady(100, DAY)
    counts[700:720] = 3
    (found,) = find(counts)
    assert (found.kind, found.begin, found.end, found.is_open) == (DROP, 700, 720, False)
    assert found.operations == 60
    assert found.usual == pytest.approx(100, rel=0.1)
    assert found.deviation == pytest.approx(1940, rel=0.1)


def test_spike_of_a_busy_table_is_found() -> None:
    counts = steady(100, DAY)
    counts[700:703] = (900, 1500, 700)
    (found,) = find(counts)
    assert (found.kind, found.begin, found.end, found.peak) == (SPIKE, 700, 703, 1500)
    assert found.usual == pytest.approx(100, rel=0.1)


def test_drop_that_lasts_is_open() -> None:
    counts = steady(50, 600)
    counts[580:] = 0
    (found,) = find(counts)
    assert (found.kind, found.begin, found.end, found.is_open) == (DROP, 580, 600, True)


def test_buckets_not_known_completely_are_not_judged() -> None:
    counts = steady(50, 600)
    counts[580:] = 0
    assert find(counts, until=580) == []


def test_quiet_periodic_tables_have_no_episode() -> None:
    counts = np.zeros((6, 3 * DAY), np.int64)
    for row, interval in enumerate((2, 5, 15, 60, 240, 720)):
        counts[row, 7::interval] = 200
    assert find_episodes(counts, 2 * DAY, 3 * DAY) == []


def test_random_tables_have_no_episode() -> None:
    counts = np.stack([steady(rate, 2 * DAY, seed) for rate in (0.02, 0.3, 2, 10, 300) for seed in range(100)])
    assert find_episodes(counts, 0, 2 * DAY) == []


def test_quiet_nights_are_no_drops_from_the_third_on() -> None:
    minutes = np.arange(4 * DAY)
    by_hour = np.where((minutes % DAY) < 360, 1, 60)
    found = find(np.random.default_rng(1).poisson(by_hour))
    # The nights of the second and third day, after the first day has set the level.
    assert [one.begin // DAY for one in found if one.kind == DROP] == [1, 2]
    assert all(one.end <= 3 * DAY for one in found)


def test_slow_daily_rhythm_has_no_episode() -> None:
    minutes = np.arange(3 * DAY)
    counts = np.random.default_rng(1).poisson(110 + 100 * np.sin(2 * np.pi * minutes / DAY))
    assert find(counts, shown_from=0) == []


def test_daily_burst_is_no_spike_from_the_third_on() -> None:
    usual, larger = np.stack([steady(5, 3 * DAY)] * 2)
    usual[120::DAY] = larger[120::DAY] = 50_000
    larger[2 * DAY + 120] = 500_000
    (found,) = find_episodes(np.stack([usual, larger]), 2 * DAY, 3 * DAY)
    assert (found.series, found.kind, found.begin, found.end) == (1, SPIKE, 2 * DAY + 120, 2 * DAY + 121)


def test_spike_is_followed_by_no_drop() -> None:
    counts = steady(20, DAY)
    counts[700:710] = 100_000
    assert places(find(counts)) == [(SPIKE, 700, 710)]


def test_stopped_periodic_table_is_a_drop() -> None:
    counts = np.zeros(DAY, np.int64)
    counts[:1000:5] = 100
    (found,) = find(counts)
    assert (found.kind, found.begin, found.is_open) == (DROP, 996, True)


def test_second_equal_outage_is_found_the_third_not() -> None:
    counts = steady(100, DAY)
    for begin in (300, 700, 1100):
        counts[begin:begin + 15] = 0
    assert places(find(counts)) == [(DROP, 300, 315), (DROP, 700, 715)]


def test_level_is_kept_during_an_outage() -> None:
    counts = steady(100, 900)
    counts[300:400] = 0
    counts[420:500] = 0
    found = find(counts)
    assert places(found) == [(DROP, 300, 400), (DROP, 420, 500)]
    assert [one.usual for one in found] == pytest.approx([100, 100], rel=0.1)


def test_new_level_is_the_usual_one_after_hours() -> None:
    """Nor is the return to the former level a spike."""
    counts = np.concatenate([steady(100, DAY), steady(8, DAY), steady(100, 200)])
    assert places(find(counts)) == [(DROP, DAY, DAY + 240)]


def test_first_rows_of_a_new_table_are_no_spike() -> None:
    counts = np.zeros(DAY, np.int64)
    counts[1000:1003] = 100_000
    counts[1003:] = 5
    assert find(counts) == []


def test_series_are_judged_independently() -> None:
    quiet, broken = steady(100, DAY), steady(10, DAY, 2)
    broken[900:960] = 0
    found = find_episodes(np.stack([quiet, broken, np.zeros_like(quiet)]), 0, DAY)
    assert [(one.series, one.kind, one.begin, one.end) for one in found] == [(1, DROP, 900, 960)]


def test_no_series_have_no_episodes() -> None:
    assert find_episodes(np.zeros((0, 10), np.int64), 0, 10) == []
    assert find(steady(1, 10), until=0) == []
