"""Partitions of keys, against zlib and Python's own arithmetic."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pyarrow as pa
import pytest

from dblake.base.core.errors import ConfigError
from dblake.payloads.decode.columns import IMAGE
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.partition import Partition
from tests.support.schemas import table_schema

TEXTS = ["", "7", "käse", "x" * 300, "18446744073709551615", *(str(n) for n in range(500))]


def keys(*values: tuple[str, ...] | None) -> pa.MapArray:
    names = "ab"
    rows = [None if one is None else list(zip(names, one, strict=False)) for one in values]
    return pa.array(rows, IMAGE)


@pytest.mark.parametrize("count", [5, len(TEXTS)], ids=["few", "many"])
def test_hash_partition_equals_zlib(count: int) -> None:
    texts = random.Random(1).sample(TEXTS, count)
    for number in range(3):
        expected = [zlib.crc32(text.encode()) % 3 == number for text in texts]
        assert Partition("hash", 3, (number,)).select_keys(keys(*((t,) for t in texts))).tolist() == expected
        assert Partition("hash", 3, (number,)).select_texts(pa.array(texts), 1).tolist() == expected


def test_hash_partition_of_several_columns_equals_state() -> None:
    chosen = Partition("hash", 2, (1,)).select_keys(keys(("1", 'q"x'), ("11", ""), ("", "11")))
    assert chosen.tolist() == [zlib.crc32(t.encode()) % 2 == 1 for t in ('1:13:q"x', "2:110:", "0:2:11")]
    texts = pa.array(['["1","q\\"x"]', '["11",""]', '["","11"]'])
    assert Partition("hash", 2, (1,)).select_texts(texts, 2).tolist() == chosen.tolist()


@pytest.mark.parametrize("by", ["hash", "mod", "range"])
def test_rows_without_key_belong_to_partition_0(by: str) -> None:
    given = keys(None, ("5",), None)
    first = Partition(by, 3, (0,)).select_keys(given)  # type: ignore[arg-type]
    other = Partition(by, 3, (1, 2)).select_keys(given)  # type: ignore[arg-type]
    assert (first | other).all() and not (first & other).any()
    assert first[[0, 2]].all()


@pytest.mark.parametrize(("by", "of", "take", "expected"), [
    ("mod", 3, (0, 2), [True, False, True, True, True]),
    ("range", 3, (0, -1), [True, True, True, False, True]),
])
def test_partition_by_number(by: str, of: int, take: tuple[int, ...], expected: list[bool]) -> None:
    given = keys(("0",), ("1",), ("2",), ("3",), ("-1",))
    assert Partition(by, of, take).select_keys(given).tolist() == expected  # type: ignore[arg-type]


def test_partition_bounds_never_rule_out_a_key() -> None:
    choose = random.Random(2)
    for _ in range(2000):
        by, of = choose.choice(["mod", "range", "hash"]), choose.randint(1, 9)
        partition = Partition(by, of, tuple(choose.sample(range(of), choose.randint(1, of))))  # type: ignore[arg-type]
        least = choose.randint(-20, 60)
        numbers = list(range(least, least + choose.randint(1, 12)))
        has_key = partition.select_numbers(pa.array(numbers)).any()
        if by != "hash" and not partition.may_hold(numbers[0], numbers[-1]):
            assert not has_key, (partition, numbers)


def test_partition_by_number_requires_integer_key() -> None:
    partition = Partition("mod", 3, (0,))
    partition.require_integer_key(table_schema("public.t", "id bigint key"))
    partition.require_integer_key(table_schema("public.t", "id text"))
    with pytest.raises(ConfigError, match="its key is no integer"):
        partition.require_integer_key(table_schema("public.t", "id uuid key"))
    with pytest.raises(ConfigError, match="a key is no integer"):
        partition.select_keys(keys(("x",)))


def test_selection_of_tables_and_columns() -> None:
    selection = Selection(["public.*", "!public.a*"], {"public.o*": ["v", "w"]})
    assert [selection.has_table(t) for t in ("public.orders", "public.audit", "other.orders", 'public."O"')] == [
        True, False, False, True
    ]
    orders = table_schema("public.orders", "id integer key", "v text", "w text", "x text")
    assert selection.columns_of(orders) == frozenset({"id", "v", "w"})
    assert selection.columns_of(table_schema("public.t", "id integer key")) is None
    assert Selection(["a.*"]).identity != selection.identity
    with pytest.raises(ConfigError, match=r"tables: not a schema\.table pattern: orders"):
        Selection(["orders"])


def test_hash_partitions_are_even() -> None:
    texts = pa.array([str(n) for n in range(10_000)])
    counts = [int(np.count_nonzero(Partition("hash", 4, (n,)).select_texts(texts, 1))) for n in range(4)]
    assert sum(counts) == 10_000 and min(counts) > 2_300
