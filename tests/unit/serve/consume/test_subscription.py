"""Subscriptions on a lake that the real capture, reconcile and state write: order, whole transactions, no hole."""

from __future__ import annotations

import copy
import json
import random
import tempfile
import threading
import time
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from dblake.base.core.errors import (
    ConfigError,
    ConsumeError,
    Fenced,
    PointOutOfRange,
    ProgressUnavailable,
    StateNotReady,
    UsageError,
)
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.log import Application, record_batch
from dblake.serve.consume import event_table, transactions
from dblake.serve.consume.cursor import BEGINNING, Cursor, write_checkpoint
from dblake.serve.consume.file_checkpoint import FileCheckpoint
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import Transaction
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from tests.support.consumers import ACCOUNTS, LEFT, TABLES, TOTAL, Shop, SqliteConsumer, describe, folded_shop
from tests.support.effort import seeds
from tests.support.readings import EventLake


@pytest.fixture(scope="module")
def quiet_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Return a shop that tests only read: state holds 15 transactions, events hold 5 more."""
    return make_shop(tmp_path_factory.mktemp("quiet"))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return a shop of the test's own."""
    return make_shop(tmp_path)


def make_shop(folder: Path) -> Shop:
    return folded_shop(folder, 15, later=5)


def read(shop: Shop, **settings: Any) -> list[Transaction]:
    with shop.subscribe(**settings) as subscription:
        return list(subscription)


def changes(found: list[Transaction]) -> list[Transaction]:
    return [one for one in found if one.control is None and one.committed_at is not None]


def test_bootstrap_then_changes_in_order(quiet_shop: Shop) -> None:
    found = read(quiet_shop)
    assert describe(found)[:2] == ["bootstrap_started", "schema public.left"]
    finished = describe(found).index("bootstrap_finished")
    rows = [event for one in found[:finished] for event in one.events]
    assert {(event.op, event.origin) for event in rows} == {("r", "state")}
    assert len(rows) == 2 * ACCOUNTS
    after = found[finished + 1 :]
    assert len(after) == 5
    assert all(one.position > found[finished].position for one in after)
    assert [one.position for one in after] == sorted(one.position for one in after)
    assert all([event.last_in_transaction for event in one.events].index(True) == len(one.events) - 1 for one in after)


@pytest.mark.parametrize("seed", seeds(3, 17))
def test_consumer_killed_at_random_equals_source(tmp_path: Path, seed: int) -> None:
    """The consumer keeps its checkpoint with its rows; each round ends after some transactions, or inside one."""
    choose, shop, kills = random.Random(seed), Shop(tmp_path, seed), 0
    shop.move(5)
    shop.land(*TABLES)
    shop.reconcile()
    shop.fold()
    for _ in range(20):
        step = choose.randrange(5)
        if step == 0:
            shop.move(choose.randrange(1, 10))
        elif step == 1:
            shop.land(*choose.sample(TABLES, choose.randrange(2)), max_rows=choose.choice([1, 3, 1000]))
        elif step == 2:
            newest = shop.lake.reached.batch
            done = DeltaTable(shop.paths.events).transaction_version(Application.reconcile("shop")) or 0
            shop.reconcile(choose.randint(done, newest))
        elif step == 3:
            shop.fold()
        else:
            kills += consume(shop, tmp_path / "shop.db", choose.randrange(12))
    shop.land()
    shop.reconcile()
    consume(shop, tmp_path / "shop.db", None)
    consumer = SqliteConsumer(tmp_path / "shop.db")
    assert [consumer.rows(table) for table in TABLES] == [shop.rows(table) for table in TABLES]
    consumer.close()


class _Killed(Exception):
    """The consumer died before it committed a transaction."""


def consume(shop: Shop, file: Path, count: int | None) -> bool:
    """Apply so many transactions, then die inside the next; return whether it died. None: until caught up."""
    consumer = SqliteConsumer(file)

    def die() -> None:
        raise _Killed

    try:
        with shop.subscribe(checkpoint=consumer.checkpoint) as subscription:
            is_complete = consumer.checkpoint is not None and '"bootstrap"' not in consumer.checkpoint
            for number, transaction in enumerate(subscription):
                consumer.apply(transaction, die if number == count else lambda: None)
                is_complete = is_complete or consumer.controls[-1:] == ["bootstrap_finished"]
                assert not is_complete or consumer.total() == TOTAL, transaction
    except _Killed:
        return True
    finally:
        consumer.close()
    return False


def test_open_transaction_waits_for_its_end(shop: Shop) -> None:
    """Landing cuts a transaction into batches; events hold only the first of them."""
    checkpoint = read(shop)[-1].checkpoint
    before = shop.lake.reached.batch
    shop.move()
    shop.land(max_rows=1)
    assert shop.lake.reached.batch > before + 1
    shop.reconcile(before + 1)
    assert read(shop, checkpoint=checkpoint) == []
    shop.reconcile()
    (transaction,) = read(shop, checkpoint=checkpoint)
    assert len({event.table for event in transaction.events}) == 2


def test_commit_to_landing_ends_the_wait(shop: Shop) -> None:
    settings = SubscriptionSettings(start="now", poll_seconds=600, live=True)
    stop = threading.Event()
    guard = threading.Timer(120, stop.set)
    with Subscription([shop.paths], settings, stop=stop) as subscription:
        found = subscription.batches(1)
        assert next(found) == []
        guard.start()
        shop.move()
        shop.land()
        transaction = next(one for batch in found for one in batch if one.events)
        guard.cancel()
    assert {event.table for event in transaction.events} == set(TABLES)


def test_resume_inside_bootstrap_repeats_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblake.serve.consume.state_rows.ROWS_AT_ONCE", 3)
    found = read(shop)
    for place in (2, 4, 9, 12):
        # The rest is read at the state versions of the checkpoint, whatever state does after it.
        shop.move()
        shop.land()
        shop.reconcile()
        shop.fold()
        rest = read(shop, checkpoint=found[place].checkpoint)
        expected = describe(found[place + 1 :])
        assert describe(rest)[: len(expected)] == expected


def test_large_transaction_is_spooled_whole(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a file without a name: a killed process leaves none behind."""
    checkpoint = read(shop)[-1].checkpoint
    with shop.backend.begin() as transaction:
        for table in TABLES:
            for number in range(5000, 5040):
                transaction.insert(table, {"id": str(number), "amount": "0", "note": None})
    shop.land(max_rows=7)
    shop.reconcile()
    expected = read(shop, checkpoint=checkpoint)
    monkeypatch.setattr(transactions, "SPOOLED_ROWS", 10)
    monkeypatch.setattr(transactions, "ROWS_AT_ONCE", 9)
    monkeypatch.setattr(event_table, "PORTION_BYTES", 1)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (found,) = read(shop, checkpoint=checkpoint)
    assert isinstance(found.events, transactions.SpooledEvents)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert list(found.events) == list(expected[0].events)
    assert (len(found.events), found.events[-1], found.events[3:5]) == (80, expected[0].events[-1],
                                                                        expected[0].events[3:5])


def test_expired_events_are_a_gap_and_bootstrap(shop: Shop) -> None:
    checkpoint = changes(read(shop))[0].checkpoint
    shop.fold()
    record_batch(shop.paths.events, Application.consolidation("shop"), shop.lake.reached.batch)
    found = describe(read(shop, checkpoint=checkpoint))
    assert found[:2] == ["gap", "bootstrap_started"]
    assert found[-1] == "bootstrap_finished"




def test_tables_replaced_by_older_ones_rejected(quiet_shop: Shop, tmp_path: Path) -> None:
    checkpoint = read(quiet_shop)[-1].checkpoint
    other = Shop(tmp_path / "restored")
    other.land()
    other.reconcile()
    with pytest.raises(ConsumeError, match=r"events end at batch \d+, before the checkpoint's batch"):
        read(other, checkpoint=checkpoint)


def test_batches_numbered_again_are_rejected(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake restored to an earlier point captures again, and may number the batches otherwise than before."""
    every = changes(read(shop, start="1/0"))
    checkpoint = json.loads(every[len(every) // 2].checkpoint)
    renumbered = copy.deepcopy(checkpoint)
    renumbered["sources"]["shop"]["batch"] = shop.lake.reached.batch
    assert changes(read(shop, checkpoint=json.dumps(checkpoint))) == every[len(every) // 2 + 1 :]
    with pytest.raises(ConsumeError, match=r"batches up to the checkpoint's, \d+, have events that are new to it"):
        read(shop, checkpoint=json.dumps(renumbered))
    # One that an earlier release wrote has no newest position.
    del renumbered["sources"]["shop"]["newest"]
    read(shop, checkpoint=json.dumps(renumbered))


def test_unselected_events_after_checkpoint_are_accepted(shop: Shop) -> None:
    selection = Selection(["public.left"])
    checkpoint = read(shop, selection=selection)[-1].checkpoint
    with shop.subscribe(selection=selection, checkpoint=checkpoint) as subscription:
        assert list(subscription) == []
        checkpoint = subscription.checkpoint()
    for _ in range(3):
        shop.move()
        shop.land()
        shop.reconcile()
        assert all(event.table == "public.left" for one in read(shop, selection=selection, checkpoint=checkpoint)
                   for event in one.events)


def test_failed_save_repeats_transaction(quiet_shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileCheckpoint(tmp_path / "kept" / "checkpoint")
    with Subscription([quiet_shop.paths], SubscriptionSettings(until_caught_up=True), store) as subscription:
        transactions = iter(subscription)
        first, second = next(transactions), next(transactions)
        subscription.checkpoint(first)
        monkeypatch.setattr(store, "save", _fail)
        with pytest.raises(ProgressUnavailable):
            subscription.checkpoint(second)
        subscription.rollback()
        assert next(transactions) == second


def _fail(_: str) -> None:
    raise ProgressUnavailable("the disk is full")


def test_start_points(quiet_shop: Shop) -> None:
    everything = changes(read(quiet_shop, start="1/0"))
    third = everything[2]
    assert changes(read(quiet_shop, start=f"1/{third.position.lsn}")) == everything[3:]
    assert changes(read(quiet_shop, start=str(third.events[0].position)))[0].events == third.events[1:]
    assert third.committed_at is not None
    assert changes(read(quiet_shop, start=third.committed_at.isoformat()))[-1] == everything[-1]
    assert read(quiet_shop, start="now") == []


@pytest.mark.parametrize("point", ["1/99999999", "2/1"])
def test_start_beyond_events_rejected(quiet_shop: Shop, point: str) -> None:
    with pytest.raises(PointOutOfRange, match=rf"{point} cannot be read: the earliest readable point is"):
        read(quiet_shop, start=point)


def test_start_that_is_an_lsn_has_a_hint(tmp_path: Path) -> None:
    """Read as a position it precedes all events, so that all would be delivered."""
    lake = EventLake(tmp_path)
    lake.append(LEFT, (0x1_2000_0000, "c", "1", {"id": "1"}), (0x1_3000_0000, "c", "2", {"id": "2"}))

    def begin(start: str) -> list[Transaction]:
        with Subscription([lake.paths], SubscriptionSettings(start=start, until_caught_up=True)) as subscription:
            return [one for one in subscription if one.events]

    with pytest.raises(UsageError, match="as an LSN of PostgreSQL it would be among them") as caught:
        begin("1/28000000")
    assert "write lsn:1/28000000" in str(caught.value.next_step)
    assert len(begin("lsn:1/28000000")) == 1
    assert len(begin("1/0")) == 2


def test_start_before_retention_rejected(shop: Shop) -> None:
    expired = changes(read(shop, start="1/0"))[15]
    batch = shop.lake.reached.batch
    record_batch(shop.paths.events, Application.consolidation("shop"), batch)
    with pytest.raises(PointOutOfRange):
        read(shop, start=f"1/{expired.position.lsn}")


@pytest.mark.parametrize("text", ["yesterday", "1", "1/2/3/4", ""])
def test_start_without_meaning_rejected(quiet_shop: Shop, text: str) -> None:
    with pytest.raises(UsageError, match="is no point: neither a position nor a time"):
        quiet_shop.subscribe(start=text)


def test_bootstrap_without_state_is_retryable(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with pytest.raises(StateNotReady, match="there are no events yet"):
        read(shop)
    shop.land()
    shop.reconcile()
    with pytest.raises(StateNotReady, match="a bootstrap reads state, which is empty"):
        read(shop)


def test_checkpoint_of_other_tables_rejected(quiet_shop: Shop) -> None:
    checkpoint = read(quiet_shop, selection=Selection(["public.left"]))[-1].checkpoint
    with pytest.raises(ConfigError, match="belongs to other tables, columns or another partition"):
        read(quiet_shop, checkpoint=checkpoint)
    columns = Selection(["public.left"], {"public.left": ["amount"]})
    with pytest.raises(ConfigError, match="belongs to other tables, columns"):
        read(quiet_shop, selection=columns, checkpoint=checkpoint)
    with pytest.raises(ConfigError, match="cannot be parsed"):
        read(quiet_shop, checkpoint=checkpoint[:-9])


def test_stored_checkpoint_continues_and_is_locked(quiet_shop: Shop, tmp_path: Path) -> None:
    def subscribe() -> Subscription:
        settings = SubscriptionSettings(until_caught_up=True)
        return Subscription([quiet_shop.paths], settings, FileCheckpoint(tmp_path / "kept" / "checkpoint"))

    with subscribe() as subscription:
        for number, transaction in enumerate(subscription):
            if number == 8:
                subscription.checkpoint(transaction)
        with pytest.raises(Fenced, match="another process uses the checkpoint"), subscribe():
            pass
    with subscribe() as subscription:
        assert describe(list(subscription)) == describe(read(quiet_shop))[9:]


def test_rollback_repeats_from_last_checkpoint(quiet_shop: Shop) -> None:
    expected, found = describe(read(quiet_shop)), list[Transaction]()
    with quiet_shop.subscribe() as subscription:
        for transaction in subscription:
            found.append(transaction)
            if len(found) == 3:
                subscription.checkpoint(transaction)
            if len(found) == 6:
                subscription.rollback()
    assert describe(found) == expected[:6] + expected[3:]


def test_idle_checkpoint_passes_unselected_batches(shop: Shop) -> None:
    """A quiet table's consumer is not behind, however much other tables change."""
    selection = Selection(["public.none"])
    with shop.subscribe(selection=selection) as subscription:
        assert describe(list(subscription)) == ["bootstrap_started", "bootstrap_finished"]
        checkpoint = subscription.checkpoint()
    record_batch(shop.paths.events, Application.consolidation("shop"), shop.lake.reached.batch)
    assert read(shop, selection=selection, checkpoint=checkpoint) == []


def test_added_column_keeps_pinned_consumer_working(shop: Shop) -> None:
    checkpoint = read(shop)[-1].checkpoint
    shop.backend.add_column("public.left", Column("extra", "text"), "x")
    shop.move(5)
    shop.land(redump=False)
    shop.reconcile()
    free = [event for one in read(shop, checkpoint=checkpoint) for event in one.events if event.table == LEFT.table]
    assert any("extra" in (event.after or {}) for event in free)
    pinned = read(shop, checkpoint=checkpoint, schemas={LEFT.table: LEFT})
    events = [event for one in pinned for event in one.events if event.table == LEFT.table]
    assert events and all(event.schema == LEFT and "extra" not in (event.after or {}) for event in events)
    assert "schema public.left" not in describe(pinned)
    wider = TableSchema(LEFT.table, (*LEFT.columns[:1], Column("amount", "bigint"), Column("later", "text")))
    (last,) = [one for one in read(shop, start="bootstrap", schemas={LEFT.table: wider}) if one.control is None][:1]
    assert {tuple(event.after or {}) for event in last.events} == {("id", "amount", "later")}
    narrow = TableSchema(LEFT.table, (*LEFT.columns[:1], Column("amount", "smallint")))
    with pytest.raises(ConsumeError, match="column amount is integer, not smallint"):
        read(shop, checkpoint=checkpoint, schemas={LEFT.table: narrow})


def test_selected_columns_always_include_key(quiet_shop: Shop) -> None:
    found = read(quiet_shop, selection=Selection(["public.*"], {"public.left": ["note"]}))
    images = {event.table: set(event.after) for one in found for event in one.events if event.after}
    assert images["public.left"] == {"id", "note"}
    assert images["public.right"] == {"id", "amount", "note"}


@pytest.mark.parametrize("by", ["hash", "mod", "range"])
def test_partitions_share_every_row_once(quiet_shop: Shop, by: str) -> None:
    of = 7 if by == "range" else 3
    takes = [(0, 2), (1,)] if by != "range" else [(0, 2), tuple(n for n in range(200) if n not in (0, 2))]

    def rows(partition: Partition | None) -> list[str]:
        found = read(quiet_shop, selection=Selection(partition=partition))
        return [f"{event.position} {event.table}" for one in found for event in one.events]

    parts = [rows(Partition(by, of, take)) for take in takes]  # type: ignore[arg-type]
    assert all(parts)
    assert sorted([*parts[0], *parts[1]]) == sorted(rows(None))


def test_several_sources_are_each_in_order(quiet_shop: Shop, tmp_path: Path) -> None:
    other = Shop(tmp_path, 7, "other")
    other.move(3)
    other.land(*TABLES)
    other.reconcile()
    other.fold()
    settings = SubscriptionSettings(until_caught_up=True)
    with Subscription([quiet_shop.paths, other.paths], settings) as subscription:
        found = list(subscription)
        checkpoint = subscription.checkpoint()
    for source in ("shop", "other"):
        positions = [one.position for one in found if one.source == source]
        assert positions == sorted(positions) and len(positions) > 4
    settings = SubscriptionSettings(until_caught_up=True, checkpoint=start_of([quiet_shop, other]))
    with Subscription([quiet_shop.paths, other.paths], settings) as subscription:
        merged = changes(list(subscription))
    times = [one.committed_at or datetime.min.replace(tzinfo=UTC) for one in merged]
    assert times == sorted(times)
    assert len(list(groupby(one.source for one in merged))) > 4
    settings = SubscriptionSettings(until_caught_up=True, checkpoint=checkpoint)
    with Subscription([quiet_shop.paths, other.paths], settings) as subscription:
        assert list(subscription) == []
    with pytest.raises(UsageError, match="a position is of one source"):
        Subscription([quiet_shop.paths, other.paths], SubscriptionSettings(start="1/1"))


def test_abandoned_poll_is_read_again(quiet_shop: Shop, tmp_path: Path) -> None:
    """A group member gives up a poll whenever its partitions change; the other source's next step is read by then."""
    other = Shop(tmp_path, 7, "other")
    other.move(2)
    other.land()
    other.reconcile()
    settings = SubscriptionSettings(checkpoint=start_of([quiet_shop, other]), until_caught_up=True)
    with Subscription([quiet_shop.paths, other.paths], settings) as subscription:
        expected = sorted(describe(list(subscription)))
    found = list[Transaction]()
    with Subscription([quiet_shop.paths, other.paths], settings) as subscription:
        for _ in expected:
            found += [next(subscription.poll())]
        assert list(subscription.poll()) == []
    assert sorted(describe(found)) == expected


def start_of(shops: list[Shop]) -> str:
    """Return a checkpoint before the first event of several sources."""
    cursors = {shop.paths.source: Cursor(BEGINNING, 0) for shop in shops}
    return write_checkpoint(cursors, Selection().identity)


def test_live_subscription_follows_new_events(shop: Shop) -> None:
    began = time.monotonic()
    with shop.subscribe(until_caught_up=False, start="now", poll_seconds=0.01) as subscription:
        batches = subscription.batches(100)
        assert next(batches) == []
        shop.move()
        shop.land()
        shop.reconcile()
        found = next(batch for batch in batches if batch)
    assert found[-1].committed_at is not None and found[-1].committed_at > datetime(2020, 1, 1, tzinfo=UTC)
    assert time.monotonic() - began < 20
