"""Columns of events as Python lists: the fast ways give what ``to_pylist`` gives."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from dblake.serve.consume.event_columns import PLAIN_READERS, image_dicts

NAMES = ["id", "name", "note"]


def random_images(draw: random.Random, *, same_columns: bool, has_nulls: bool) -> pa.Array:
    """Return maps of up to three columns."""
    def names() -> list[str]:
        return NAMES if same_columns else draw.sample(NAMES, draw.randint(0, 3))

    rows = [
        None if has_nulls and draw.random() < 0.3 else [(name, draw.choice([None, "x", "é"])) for name in names()]
        for _ in range(draw.randint(0, 9))
    ]
    return pa.array(rows, pa.map_(pa.string(), pa.string()))


@pytest.mark.parametrize("same_columns", [True, False])
@pytest.mark.parametrize("has_nulls", [True, False])
def test_images_equal_maps_of_arrow(same_columns: bool, has_nulls: bool) -> None:
    for seed in range(100):
        draw = random.Random(seed)
        images = random_images(draw, same_columns=same_columns, has_nulls=has_nulls)
        cut = draw.randint(0, len(images))
        for chunks in ([images], [images.slice(cut)], [images.slice(0, cut), images.slice(cut)]):
            column = pa.chunked_array(chunks)
            assert image_dicts(column) == [None if one is None else dict(one) for one in column.to_pylist()], seed


def test_times_equal_times_of_arrow() -> None:
    draw = random.Random(1)
    since = datetime(1900, 1, 1, tzinfo=UTC)
    times = [
        None if draw.random() < 0.3 else since + timedelta(microseconds=draw.randrange(10**16)) for _ in range(200)
    ]
    column = pa.chunked_array([pa.array(times, pa.timestamp("us", tz="UTC"))])
    found = PLAIN_READERS["committed_at"](column)
    assert found == column.to_pylist() == times
    assert all(at is None or at.tzinfo is UTC for at in found)
