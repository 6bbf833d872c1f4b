"""Consolidated changes for a subscription that is behind: the same rows as all events lead to, each key once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.op import Op
from dblake.base.lake.log import Application, record_batch
from dblake.serve.consume import catch_up, state_rows
from dblake.serve.consume.cursor import read_cursor
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import ControlKind, Transaction
from dblake.serve.consume.partition import Partition
from tests.support.consumers import LEFT, TABLES, Shop, folded_shop
from tests.support.effort import seeds
from tests.support.schemas import table_schema
from tests.unit.serve.consume.test_discontinuities import read, replace_events

STARTED, FINISHED = ControlKind.CONSOLIDATED_STARTED, ControlKind.CONSOLIDATED_FINISHED


class Copy:
    """A consumer's copy of the tables; ``changes`` counts the changes of each key since the newest start."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict[str, str | None]]] = {table: {} for table in TABLES}
        self.checkpoint = ""
        self.controls: list[ControlKind] = []
        self.changes = Counter[tuple[str, str]]()

    def apply(self, transaction: Transaction) -> None:
        """Apply a transaction or control entry."""
        if transaction.control:
            self.controls.append(transaction.control.kind)
        for event in transaction.events:
            table = self.rows[event.table]
            if event.op == Op.TRUNCATE:
                table.clear()
                continue
            assert event.key is not None and event.key["id"] is not None
            key = event.key["id"]
            self.changes[event.table, key] += 1
            if event.op == Op.DELETE:
                table.pop(key, None)
            elif event.op in (Op.CREATE, Op.READ):
                table[key] = dict(event.after or {})
            else:
                table[key] = {**table.get(key, {}), **(event.after or {})}
        self.checkpoint = transaction.checkpoint

    def follow(self, shop: Shop, until: int | None = None, **settings: Any) -> None:
        """Read from the checkpoint until caught up, or until some entries have come."""
        resumed: dict[str, Any] = {"checkpoint": self.checkpoint} if self.checkpoint else {}
        with shop.subscribe(**resumed, **settings) as subscription:
            for number, transaction in enumerate(subscription):
                if number == until:
                    return
                self.apply(transaction)

    def sorted(self, tables: Iterable[str] = TABLES) -> dict[str, list[Any]]:
        """Return the rows as ``Shop.rows`` has them."""
        return {
            table: sorted(((int(r["id"] or 0), int(r["amount"] or 0), r["note"]) for r in self.rows[table].values()),
                          key=str)
            for table in tables
        }


def source(shop: Shop) -> dict[str, list[Any]]:
    return {table: shop.rows(table) for table in TABLES}


def fall_behind(shop: Shop, moves: int) -> None:
    """Commit many changes of few keys, among them key changes and deletes, and fold them."""
    shop.move(moves)
    with shop.backend.begin() as transaction:
        gone = shop.backend.rows(LEFT.table)[0]
        transaction.delete(LEFT.table, {"id": gone["id"]})
    shop.land()
    shop.reconcile()
    shop.fold()


@pytest.mark.parametrize("seed", seeds(2, 12))
def test_catch_up_killed_anywhere_leads_to_rows_of_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for module in (catch_up, state_rows):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 3)
    draw, shop, copy = random.Random(seed), folded_shop(tmp_path, 15, later=5), Copy()
    copy.follow(shop)
    assert copy.sorted() == source(shop)
    fall_behind(shop, 60)
    if seed % 2:
        with shop.backend.begin() as transaction:
            transaction.truncate(LEFT.table)
            transaction.insert(LEFT.table, {"id": "7", "amount": "1", "note": "after"})
        fall_behind_by_events(shop)
    for _ in range(6):
        copy.follow(shop, until=draw.randint(0, 5), catch_up="consolidated")
    copy.follow(shop, catch_up="consolidated")
    assert STARTED in copy.controls and FINISHED in copy.controls
    assert copy.sorted() == source(shop)


def fall_behind_by_events(shop: Shop) -> None:
    """Fold the truncate, and leave later changes to events."""
    shop.land()
    shop.reconcile()
    shop.fold()
    with shop.backend.begin() as transaction:
        transaction.update(LEFT.table, {"id": "7"}, {"amount": "2"})
    shop.land()
    shop.reconcile()


def test_catch_up_delivers_each_key_once(tmp_path: Path) -> None:
    shop, copy = folded_shop(tmp_path, 15), Copy()
    copy.follow(shop)
    fall_behind(shop, 60)
    copy.changes.clear()
    copy.controls.clear()
    copy.follow(shop, catch_up="consolidated")
    assert copy.controls == [STARTED, FINISHED]
    assert set(copy.changes.values()) == {1}
    assert copy.sorted() == source(shop)
    copy.changes.clear()
    copy.follow(shop, catch_up="consolidated")
    assert not copy.changes


def test_catch_up_auto_replays_events_of_keys_that_changed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "_MIN_BYTES", 0)
    monkeypatch.setattr(catch_up, "_EVENTS_PER_TABLE", 0)
    shop, copy, other = folded_shop(tmp_path, 15), Copy(), Copy()
    copy.follow(shop)
    other.checkpoint, other.rows = copy.checkpoint, {table: dict(rows) for table, rows in copy.rows.items()}
    fall_behind(shop, 2)
    copy.follow(shop, catch_up="auto")
    assert STARTED not in copy.controls and copy.sorted() == source(shop)
    fall_behind(shop, 60)
    other.follow(shop, catch_up="auto")
    assert STARTED in other.controls and other.sorted() == source(shop)


def test_catch_up_of_partition_delivers_its_keys_alone(tmp_path: Path) -> None:
    shop = folded_shop(tmp_path, 15)
    selections = [Selection(partition=Partition("hash", 2, (number,))) for number in range(2)]
    copies = Copy(), Copy()
    for copy, selection in zip(copies, selections, strict=True):
        copy.follow(shop, selection=selection)
    fall_behind(shop, 60)
    for copy, selection in zip(copies, selections, strict=True):
        copy.follow(shop, selection=selection, catch_up="consolidated")
        assert STARTED in copy.controls
    both = Copy()
    both.rows = {table: copies[0].rows[table] | copies[1].rows[table] for table in TABLES}
    assert both.sorted() == source(shop)
    assert not copies[0].rows[LEFT.table].keys() & copies[1].rows[LEFT.table].keys()


def test_catch_up_replays_events_beyond_a_gap(tmp_path: Path) -> None:
    shop, copy = folded_shop(tmp_path, 15), Copy()
    copy.follow(shop)
    shop.backend.drop_slot()
    shop.land(*TABLES, accept_gap=True)
    fall_behind(shop, 20)
    copy.follow(shop, catch_up="consolidated")
    assert copy.controls[-1] is ControlKind.INCARNATION and STARTED not in copy.controls


def test_catch_up_replays_events_until_redecoded_state_is_rebuilt(tmp_path: Path) -> None:
    shop, copy = folded_shop(tmp_path, 15), Copy()
    copy.follow(shop)
    last = read_cursor(copy.checkpoint, "shop", "memory")
    fall_behind(shop, 20)
    assert last is not None
    replace_events(shop, 1, last.batch + 1, different=1)
    copy.follow(shop, catch_up="consolidated")
    assert STARTED not in copy.controls and copy.sorted() == source(shop)


def test_catch_up_of_following_subscription_replays_events(tmp_path: Path) -> None:
    shop = folded_shop(tmp_path, 15)
    with shop.subscribe(catch_up="consolidated") as subscription:
        copy = Copy()
        for transaction in subscription.poll():
            copy.apply(transaction)
        fall_behind(shop, 20)
        for transaction in subscription.poll():
            copy.apply(transaction)
    assert copy.controls.count(ControlKind.BOOTSTRAP_FINISHED) == 1 and STARTED not in copy.controls
    assert copy.sorted() == source(shop)


def test_checkpoint_inside_consolidated_changes_has_version_of_its_own(tmp_path: Path) -> None:
    """An earlier version would take it for a bootstrap's, and rejects it by its number."""
    shop, copy = folded_shop(tmp_path, 15), Copy()
    copy.follow(shop)
    fall_behind(shop, 20)
    copy.follow(shop, until=1, catch_up="consolidated")
    assert copy.controls[-1] is STARTED and json.loads(copy.checkpoint)["version"] == 2
    copy.follow(shop)
    assert copy.controls[-1] is FINISHED and json.loads(copy.checkpoint)["version"] == 1
    assert copy.sorted() == source(shop)


def test_catch_up_of_row_with_unknown_columns_is_an_update(tmp_path: Path) -> None:
    wide = table_schema("public.wide", "id integer key", "n integer", "body text")
    shop = Shop(tmp_path)
    shop.backend.create(wide, toasted=["body"])
    with shop.backend.begin() as transaction:
        transaction.insert(wide.table, {"id": "1", "n": "1", "body": "b" * 9000})
    shop.backend.advance_slot()
    shop.land(*TABLES)
    shop.reconcile()
    shop.fold()
    start = read(shop)[-1].checkpoint
    with shop.backend.begin() as transaction:
        transaction.update(wide.table, {"id": "1"}, {"n": "2"})
    shop.land()
    shop.reconcile()
    shop.fold()
    found = [event for one in read(shop, checkpoint=start, catch_up="consolidated") for event in one.events]
    assert [(event.op, event.after) for event in found if event.table == wide.table] == [("u", {"id": "1", "n": "2"})]


def test_catch_up_after_events_expired_begins_with_bootstrap(tmp_path: Path) -> None:
    shop, copy = folded_shop(tmp_path, 15), Copy()
    copy.follow(shop)
    fall_behind(shop, 60)
    copy.follow(shop, until=1, catch_up="consolidated")
    assert copy.controls[-1] is STARTED
    # Maintenance removes events that the changed keys are read from.
    record_batch(shop.paths.events, Application.consolidation(shop.paths.source), shop.lake.reached.batch)
    copy.follow(shop, catch_up="consolidated")
    assert ControlKind.GAP in copy.controls and copy.controls[-1] is ControlKind.BOOTSTRAP_FINISHED
