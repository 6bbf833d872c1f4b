"""The search index example: a join of two tables at the source equals the index, whatever happens on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dblake.serve.consume.model import Transaction
from dblake.serve.outputs.protocol import Output
from examples.search_index import read_products, search
from tests.support.effort import EFFORT
from tests.support.example_shop import ExampleShop, run_documented_code
from tests.support.killed_subscriber import KilledSubscriber
from tests.support.postgres import Database

_TABLES = (
    "CREATE TABLE makers (id int PRIMARY KEY, name text)",
    # Not in line with its row: an update that leaves it alone does not log it.
    "CREATE TABLE products (id int PRIMARY KEY, maker int, name text, description text)",
    "ALTER TABLE products ALTER description SET STORAGE EXTERNAL",
    "INSERT INTO makers SELECT n, 'maker ' || n FROM generate_series(1, 5) n",
    "INSERT INTO products SELECT n, n % 7, 'product ' || n, repeat('long ', 600) || n FROM generate_series(1, 40) n",
)
_JOIN = """
    SELECT p.id::text, p.name, p.description, m.name FROM products p LEFT JOIN makers m ON m.id = p.maker ORDER BY p.id
"""


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[ExampleShop]:
    shop = ExampleShop(database, tmp_path, *_TABLES)
    shop.dump("public.makers", "public.products")
    shop.advance()
    yield shop
    shop.close()


def change(shop: ExampleShop, chosen: random.Random, times: int) -> None:
    """Commit changes of products, of makers, of both, and of keys."""
    for _ in range(times):
        maker, product, word = chosen.randrange(8), chosen.randrange(50), f"word{chosen.randrange(30)}"
        shop.run(*chosen.choice((
            [f"UPDATE makers SET name = '{word} Łtd' WHERE id = {maker}"],
            [f"DELETE FROM makers WHERE id = {maker}", f"UPDATE products SET maker = NULL WHERE maker = {maker}"],
            [f"INSERT INTO makers VALUES ({maker}, '{word}') ON CONFLICT DO NOTHING",
             f"UPDATE products SET maker = {maker} WHERE id = {product}"],
            [f"UPDATE products SET name = '{word}' WHERE id = {product}"],
            [f"UPDATE products SET description = repeat('{word} ', 600) WHERE id % 9 = {product % 9}"],
            [f"DELETE FROM products WHERE id = {product}"],
            [f"INSERT INTO products VALUES ({product}, {maker}, '{word}') ON CONFLICT DO NOTHING"],
            [f"DELETE FROM products WHERE id = {product}", f"DELETE FROM products WHERE id = {product + 100}",
             f"INSERT INTO products VALUES ({product + 100}, {maker}, '{word}', 'moved')"],
        )))


def indexed(path: Path) -> list[tuple[Any, ...]]:
    return sorted((tuple(product.values()) for product in read_products(path)), key=lambda row: int(row[0]))


class _Died(Exception):
    """The process ended here."""


class _Dying:
    """An output that dies at one of its writes, before or after it has committed."""

    holds_checkpoint = True

    def __init__(self, output: Output, at: int, *, after_commit: bool) -> None:
        self._output, self._left, self._after_commit = output, at, after_commit
        self.open = output.open

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        self._left -= 1
        if self._left < 0 and not self._after_commit:
            raise _Died
        self._output.write(transactions, checkpoint)
        if self._left < 0:
            raise _Died

    def close(self) -> None:
        self._output.close()


def test_index_equals_join_after_resumed_failures(
    shop: ExampleShop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each write is one transaction of the index; a delivery that ends anywhere continues from its checkpoint."""
    chosen, path, deaths = random.Random(3), tmp_path / "index", 0
    for _ in range(3):
        for _ in range(2):
            output, documented = shop.output("search", path=str(path))
            try:
                shop.deliver(_Dying(output, chosen.randrange(2), after_commit=bool(chosen.randrange(2))), documented)
            except _Died:
                deaths += 1
        change(shop, chosen, 12)
        shop.advance()
    output, documented = shop.output("search", path=str(path))
    shop.deliver(output, documented)
    assert deaths > 3
    assert indexed(path) == shop.rows(_JOIN)
    # A maker's new name finds its products, its old one does not.
    shop.run("UPDATE makers SET name = 'Ærø Værft' WHERE id = (SELECT min(maker) FROM products)")
    shop.run("TRUNCATE makers", "INSERT INTO makers SELECT DISTINCT maker, 'Ærø Værft' FROM products WHERE maker > 0")
    shop.advance()
    output, documented = shop.output("search", path=str(path))
    shop.deliver(output, documented, max_events=1000)
    assert indexed(path) == shop.rows(_JOIN)
    found = {product["id"] for product in search(path, "ærø værft", limit=100)}
    assert found == {key for (key,) in shop.rows("SELECT id::text FROM products WHERE maker > 0")}
    assert len(found) > 5 and search(path, "maker") == []
    shop.run("UPDATE products SET name = 'blue kettle' WHERE id = (SELECT min(id) FROM products WHERE maker > 0)")
    shop.advance()
    output, documented = shop.output("search", path=str(path))
    shop.deliver(output, documented)
    run_documented_code("search_index import search", "/var/lib/shop/search", path)
    assert capsys.readouterr().out == "blue kettle Ærø Værft\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_index_equals_join_after_random_kills(shop: ExampleShop, tmp_path: Path) -> None:
    """The job itself, killed by SIGKILL while the database changes."""
    chosen, path = random.Random(7), tmp_path / "index"
    _, documented = shop.output("search", path=str(path))
    subscriber = KilledSubscriber(tmp_path, "search", documented, 7)
    for _ in range(10 * EFFORT):
        change(shop, chosen, 10)
        shop.advance()
        subscriber.run_and_kill(1.5)
    subscriber.run()
    assert subscriber.kills > 5
    assert indexed(path) == shop.rows(_JOIN)
