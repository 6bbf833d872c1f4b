"""The job ``subscribe`` on a real lake, killed at every failpoint: what its target holds when a last run has ended."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.schema import Column
from dblake.serve.consume.model import Transaction
from dblake.serve.outputs.native import NativeFormat
from tests.support.backends import MemoryBackend
from tests.support.consumers import LEFT, RIGHT, TABLES, Shop, folded_shop
from tests.support.effort import EFFORT
from tests.support.kafka import KafkaServer
from tests.support.killed_subscriber import MAX_EVENTS, KilledSubscriber
from tests.support.schemas import table_schema
from tests.support.second_subscribers import PASSWORD, Kind, Targets, contend
from tests.support.sql_delivery import SCHEMA
from tests.support.sql_places import Place
from tests.support.web_service import Service, serve_requests

_SAVED = "delivery.saved"
_DELIVERY = ("delivery.written", _SAVED)
_KAFKA = ("outputs.kafka.produced", "outputs.kafka.flushed", *_DELIVERY)
_HTTP = ("outputs.http.sent", *_DELIVERY)
_SQL = ("outputs.sql.prepared", "outputs.sql.applied", "outputs.sql.committed", *_DELIVERY)
_EARLY, _LATE = [f"{name}:1" for name in _SQL], [f"{name}:2" for name in _SQL]
_CREATED = ["outputs.sql.table_created:1", "outputs.sql.guard_created:1"]
_ALTERED = ["outputs.sql.column_added:1", "outputs.sql.type_changed:1", "outputs.sql.type_changed:2"]

VISITS = table_schema("public.visits", "id integer key", "note text")

Record = tuple[str, bytes | None, bytes]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return a shop with a bootstrap of 40 rows and changes after it."""
    return folded_shop(tmp_path, 3, later=30)


@pytest.fixture
def service() -> Iterator[Service]:
    yield from serve_requests()


def _writes(shop: Shop) -> list[list[Transaction]]:
    """Return what each write has, from the start on."""
    with shop.subscribe() as subscription:
        return [batch for batch in subscription.batches(MAX_EVENTS) if batch]


def _deliver(
    subscriber: KilledSubscriber, writes: list[list[Transaction]], failpoints: list[str]
) -> tuple[list[int], Counter[int]]:
    """Kill a run at each failpoint, in its second write, then run until caught up.

    Return the numbers of the writes that the target got, in order, and of those that it may have got in part. Only the
    write whose checkpoint was not saved is repeated.
    """
    done, sent, partly = 0, list[int](), Counter[int]()
    for failpoint in failpoints:
        subscriber.kill_at(f"{failpoint}:2")
        sent += [done, done + 1]
        if failpoint == "outputs.kafka.produced":
            partly[sent.pop()] += 1
        done += 2 if failpoint == _SAVED else 1
        assert _place(subscriber.checkpoint or "") == _place(writes[done - 1][-1].checkpoint)
    subscriber.run()
    return sent + list(range(done, len(writes))), partly


def _place(checkpoint: str) -> str:
    """Return a checkpoint without the identifier of its bootstrap, which is another one in each subscription."""
    return re.sub(r',"id":"\w+"', "", checkpoint)


@pytest.mark.parametrize("rounds", [1, pytest.param(2 * EFFORT, marks=pytest.mark.slow)])
def test_killed_kafka_repeats_only_unsaved_writes(shop: Shop, kafka: KafkaServer, tmp_path: Path, rounds: int) -> None:
    """A record is in its topic once, and again for each kill before its write's checkpoint; its key keeps its order."""
    writes, encoder = _writes(shop), NativeFormat()
    write_of: dict[Record, int] = {}
    for number, transactions in enumerate(writes):
        for one in transactions:
            if one.control:
                write_of[f"killed{rounds}.control", b"shop", encoder.encode_control(one.control)] = number
            for event in one.events:
                topic = f"killed{rounds}.{event.table}"
                write_of[topic, encoder.encode_key(event), encoder.encode(event)] = number
    subscriber = KilledSubscriber(tmp_path, "bus", {
        "type": "kafka", "brokers": kafka.brokers, "tls": "disable", "topic": f"killed{rounds}.{{table}}",
        "control_topic": f"killed{rounds}.control", "tombstones": False,
    })
    sent, partly = _deliver(subscriber, writes, [*_KAFKA] * rounds)
    found: dict[tuple[str, bytes | None], list[Record]] = defaultdict(list)
    for message in kafka.read(*{topic for topic, _, _ in write_of}):
        record = message.topic() or "", message.key(), message.value() or b""
        found[record[:2]].append(record)
    times, deliveries = Counter(record for records in found.values() for record in records), Counter(sent)
    for record, write in write_of.items():
        assert deliveries[write] <= times.pop(record, 0) <= deliveries[write] + partly[write], record
    assert not times and len(sent) > len(writes)
    order = {record: number for number, record in enumerate(write_of)}
    for records in found.values():
        assert list(dict.fromkeys(records)) == [one for one in write_of if one[:2] == records[0][:2]]
        for older, newer in pairwise(records):
            assert order[newer] > order[older] or write_of[newer] == write_of[older]


@pytest.mark.parametrize("rounds", [1, pytest.param(3 * EFFORT, marks=pytest.mark.slow)])
def test_killed_http_repeats_unsaved_writes_by_key(
    shop: Shop, service: Service, tmp_path: Path, rounds: int
) -> None:
    """A service that drops each request whose Idempotency-Key it has met keeps every record once, in order."""
    writes, encoder = _writes(shop), NativeFormat()
    bodies = [
        [json.loads(line) for one in write for line in (
            [encoder.encode_control(one.control)] if one.control else map(encoder.encode, one.events)
        )] for write in writes
    ]
    subscriber = KilledSubscriber(tmp_path, "hook", {"type": "http", "url": service.url, "tls": "disable", "batch": 10})
    sent, _ = _deliver(subscriber, writes, [*_HTTP] * rounds)
    assert [one for _, records in service.requests for one in records] == [
        one for number in sent for one in bodies[number]
    ]
    kept = dict[str, list[Any]]()
    for headers, records in service.requests:
        kept.setdefault(headers["Idempotency-Key"], records)
    assert [*chain.from_iterable(kept.values())] == [*chain.from_iterable(bodies)]
    assert len(sent) == len(writes) + 2 * rounds


@pytest.fixture
def reshaped(tmp_path: Path) -> Shop:
    """Return a shop with changes of its schemas after the bootstrap: a new column, wider types, also the key's.

    There are a truncate, deletes and changed keys before. After them rows change keys in part, and no write's events
    are replaced by a later one's.
    """
    backend = MemoryBackend()
    backend.create(VISITS, toasted=["note"])
    shop = Shop(tmp_path, backend=backend)
    with backend.begin() as transaction:
        transaction.insert(VISITS.table, {"id": "0", "note": "before"})
    shop.land(*TABLES, redump=False)
    shop.reconcile()
    shop.fold()
    shop.move(4)
    with backend.begin() as transaction:
        transaction.truncate(VISITS.table)
        transaction.insert(VISITS.table, {"id": "1", "note": "after"})
    with backend.begin() as transaction:
        transaction.delete(LEFT.table, {"id": backend.rows(LEFT.table)[0]["id"]})
        transaction.update(RIGHT.table, {"id": backend.rows(RIGHT.table)[0]["id"]}, {"id": "70", "note": "moved"})
    shop.land(redump=False)
    backend.database.alter_table(replace(LEFT, columns=(*LEFT.columns, Column("more", "text"))))
    backend.database.alter_table(replace(RIGHT, columns=tuple(
        replace(column, type="bigint") if column.type == "integer" else column for column in RIGHT.columns
    )))
    for number in range(2, 30):
        shop.move()
        with backend.begin() as transaction:
            transaction.insert(VISITS.table, {"id": str(number), "note": f"after {number}"})
            if number % 4 == 0:
                # The log lacks the note.
                transaction.update(VISITS.table, {"id": str(number - 2)}, {"id": str(1000 + number)})
            transaction.insert(LEFT.table, {"id": str(2000 + number), "amount": "1", "more": "new"})
            transaction.insert(RIGHT.table, {"id": str(number << 40), "amount": str(number << 40)})
    shop.land(redump=False)
    shop.reconcile()
    return shop


@pytest.mark.parametrize(
    ("where", "failpoints"),
    [
        ("on_postgres", _LATE),
        *(pytest.param(where, [*_CREATED, *_CREATED, *_EARLY, *_ALTERED, *_LATE], marks=pytest.mark.slow)
          for where in ("on_postgres", "on_mariadb", "on_mysql")),
    ],
    ids=["postgres", "postgres-all", "mariadb-all", "mysql-all"],
)
def test_killed_sql_target_ends_equal_to_source(
    reshaped: Shop, tmp_path: Path, where: str, failpoints: Sequence[str], request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the bootstrap on, through changes of the schema, which MySQL does not roll back."""
    place: Place = request.getfixturevalue(where)
    monkeypatch.setenv("TARGET_PASSWORD", place.password)
    subscriber = KilledSubscriber(tmp_path, "copy", {
        "type": "sql", "url": place.url, "schema": SCHEMA, "table": "{schema}_{table}", "tls": "disable",
        **({"password": "${env:TARGET_PASSWORD}"} if place.password else {}),
    })
    for failpoint in failpoints:
        subscriber.kill_at(failpoint)
    subscriber.run()
    for table in (*TABLES, VISITS.table):
        rows = sorted(reshaped.backend.rows(table), key=lambda row: int(row["id"] or 0))
        expected = [tuple(int(v) if n in ("id", "amount") and v else v for n, v in row.items()) for row in rows]
        assert place.table(", ".join(rows[0]), table.replace(".", "_")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "sql", "kafka"])
def test_second_processes_of_output_change_nothing(
    service: Service, on_postgres: Place, kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
) -> None:
    """Three processes of the output start at once, and all are killed, again and again, while rows change."""
    monkeypatch.setenv(PASSWORD, on_postgres.password)
    counts = contend(kind, tmp_path, Targets(service, on_postgres, kafka), rounds=EFFORT, seed=1)
    assert counts["rejected"] >= EFFORT, counts
