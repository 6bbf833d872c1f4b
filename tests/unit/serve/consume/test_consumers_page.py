"""The examples of docs/consumers.md run as they are, on a small lake."""

from __future__ import annotations

import re
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dblake.serve.consume import Event, Transaction
from dblake.serve.sql.lake import Lake
from tests.support.consumers import TABLES, Shop

PAGE = Path(__file__).parents[4] / "docs" / "consumers.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


_CONFIGURATION = """\
warehouse: ./warehouse
progress: file:./progress
source: {name: shop, type: postgres, host: h, database: d, user: u, password: "${env:NONE}", tables: ["public.*"]}
"""


class _Enough(Exception):
    """An endless example has shown what it does."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.yaml").write_text(_CONFIGURATION, encoding="utf-8")
    shop = Shop(folder)
    shop.move(2)
    shop.land(*TABLES)
    shop.reconcile()
    shop.fold()
    shop.move(2)
    shop.land()
    shop.reconcile()
    return shop


def example(words: str) -> str:
    (found,) = [text for text in EXAMPLES if words in text]
    return str(found)


def run(shop: Shop, words: str, **names: Any) -> dict[str, Any]:
    import dblake.consume

    text = example(words).replace("shop.yaml", str(Path(shop.paths.warehouse).parent / "shop.yaml"))
    known = {**vars(dblake.consume), "lake": Lake(shop.paths), **names}
    with suppress(_Enough):
        exec(text, known)  # noqa: S102 - the page's own text
    return known


def test_first_example_handles_typed_rows(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []

    def handle(table: str, op: str, key: Any, values: Any) -> None:
        seen.append((table, op, key, values))
        if len(seen) == 42:
            raise _Enough

    run(shop, 'checkpoint="file:./checkpoint"', handle=handle)
    assert all(isinstance(values["amount"], int) for _, op, _, values in seen if op == "r")
    assert (tmp_path / "checkpoint").exists()


def test_filter_example_selects(shop: Shop) -> None:
    subscription = run(shop, 'Partition("hash", 4, (0, 1))')["subscription"]
    with subscription:
        assert sum(len(one.events) for one in subscription.poll()) < 40


def test_callback_example_indexes(shop: Shop) -> None:
    found: list[Any] = []

    def put(*row: Any) -> bool:
        found.append(row)
        # The third attempt succeeds.
        return len(found) > 2

    run(shop, "class Index(Consumer)", subscription=shop.subscribe(), put=put)
    assert len(found) > 42 and found[0] == found[1] == found[2]


def test_exactly_once_example_stores_checkpoint(shop: Shop) -> None:
    target = sqlite3.connect(":memory:")
    target.execute("CREATE TABLE progress (checkpoint text)")
    target.execute("INSERT INTO progress VALUES (NULL)")
    applied: list[Transaction] = []

    def apply(transaction: Transaction) -> None:
        applied.append(transaction)
        if len(applied) in (4, 9):
            raise _Enough

    for _ in range(2):
        run(shop, "UPDATE progress", target=target, apply=apply)
    # The transaction that failed is the first one of the second run.
    assert applied[4].position == applied[3].position
    assert [len(one.events) for one in applied[3:5]] == [len(applied[3].events)] * 2
    assert all(isinstance(event, Event) for one in applied for event in one.events)


def test_examples_are_all_known() -> None:
    assert len(EXAMPLES) == 8
