"""Periods, buckets, ticks and labels of the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dblake.base.core.errors import UsageError
from dblake.operate.report.period import choose_period, parse_duration
from dblake.operate.report.scales import format_count, lag_height, lag_ticks, lag_top, round_up, time_ticks

NOW = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "duration"),
    [("90s", timedelta(seconds=90)), ("5m", timedelta(minutes=5)), ("24h", timedelta(days=1)),
     ("7d", timedelta(days=7))],
)
def test_duration_is_parsed(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "h", "0h", "59s", "1.5h", "24", "24 h", "-1h", "1w", "٣h"])
def test_other_duration_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("since", "first", "tables", "minutes", "shown", "past"),
    [
        (timedelta(hours=24), None, 10, 1, 1440, 2880),
        (timedelta(hours=24), NOW - timedelta(days=30), 10, 1, 1440, 2880),
        (timedelta(hours=24), NOW - timedelta(hours=30), 10, 1, 1440, 361),
        (timedelta(hours=24), NOW - timedelta(hours=2), 10, 1, 121, 0),
        (timedelta(hours=24), NOW - timedelta(minutes=2), 10, 1, 10, 0),
        (timedelta(days=7), None, 10, 10, 1008, 2016),
        (timedelta(days=7), None, 10_000, 60, 168, 336),
        (timedelta(hours=24), None, 100_000, 60, 24, 48),
    ],
)
def test_period_is_divided_into_buckets(
    since: timedelta, first: datetime | None, tables: int, minutes: int, shown: int, past: int
) -> None:
    period = choose_period(since, NOW, first, tables)
    assert (period.minutes, period.shown, period.past) == (minutes, shown, past)
    assert NOW <= period.end < NOW + period.width
    assert period.bucket_of(NOW) == period.buckets - 1
    assert period.bucket_of(period.origin) == 0


def test_time_ticks_are_round() -> None:
    period = choose_period(timedelta(hours=24), NOW, None, 1)
    labels = [label for _, label in time_ticks(period)]
    assert labels == ["16:00", "20:00", "Nov 23", "04:00", "08:00", "12:00"]
    assert all(0 <= at <= 1 for at, _ in time_ticks(period))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (0.25, "0.2"), (9.5, "9.5"), (7, "7"), (940, "940"), (9999, "9,999"), (12_345, "12.3k"),
     (10_000, "10k"), (999_960, "1M"), (123_456_789, "123M")],
)
def test_count_is_short(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(("value", "rounded"), [(0, 1), (1, 1), (1.1, 1.2), (2, 2), (21, 30), (52, 60), (999, 1000)])
def test_axis_ends_at_a_round_count(value: float, rounded: float) -> None:
    assert round_up(value) == rounded


def test_lag_scale_covers_the_greatest_lag() -> None:
    assert [label for _, label in lag_ticks(5)] == ["0.1 s", "1 s", "10 s", "1 min"]
    assert [label for _, label in lag_ticks(4000)][-1] == "10 h"
    assert lag_ticks(4000)[0][0] == 0 and lag_ticks(4000)[-1][0] == 1
    assert (lag_height(0, 60), lag_height(1e9, 60)) == (0, 1)
    assert lag_top(4000) == 36000
