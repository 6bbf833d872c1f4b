"""A set of keys finds the same texts as Arrow's own comparison, also where hashes are equal."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dblake.serve.consume import key_set
from dblake.serve.consume.crc32 import crc32_of
from dblake.serve.consume.key_set import KeySet


@pytest.mark.parametrize("hashes", [2**32, 7, 1])
def test_key_set_finds_what_arrow_finds(monkeypatch: pytest.MonkeyPatch, hashes: int) -> None:
    monkeypatch.setattr(key_set, "crc32_of", lambda texts: crc32_of(texts) % hashes)
    draw = random.Random(hashes)
    keys = pa.array([str(draw.randrange(2000)) for _ in range(500)])
    for count in (0, 1, 70, 1000):
        drawn = [draw.choice(["", "ä", str(draw.randrange(2000))]) for _ in range(count)]
        texts = pa.chunked_array([drawn], pa.string())
        assert KeySet(keys).find(texts).tolist() == pc.is_in(texts, keys).to_pylist()
    assert not KeySet(keys.slice(0, 0)).find(pa.chunked_array([["1"]])).any()
    assert isinstance(KeySet(keys).find(pa.chunked_array([["1"]])), np.ndarray)
