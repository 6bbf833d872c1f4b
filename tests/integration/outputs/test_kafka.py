"""The Kafka output against a real broker: per-key order, restarts, duplicates, tombstones, errors by kind."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from dblake.consume.model import ControlKind, Transaction
from dblake.core.errors import ConfigError, EventRejected, OutputUnavailable, ProgressUnavailable
from dblake.core.schema import Column
from dblake.outputs import kafka as module
from dblake.outputs.kafka import KafkaOutput
from dblake.outputs.native import NativeFormat
from dblake.outputs.protocol import OutputContext
from tests.support.kafka import KafkaServer
from tests.support.streams import ID, Stream, random_stream


def _output(server: KafkaServer, **settings: Any) -> KafkaOutput:
    context = OutputContext("bus", ("shop",), NativeFormat())
    return KafkaOutput(context, **{"brokers": server.brokers, **settings})


def _write(output: KafkaOutput, transactions: list[Transaction]) -> None:
    output.write(transactions, transactions[-1].checkpoint)


def _histories(records: list[Message]) -> dict[str, list[str]]:
    """Return the positions of each key's records in the order of its partition, with a check that it has one only."""
    found: dict[str, list[str]] = defaultdict(list)
    partitions: dict[str, set[int | None]] = defaultdict(set)
    for record in records:
        value, raw = record.value(), record.key()
        if value is None or raw is None:
            continue
        key = raw.decode()
        found[key].append(json.loads(value)["position"])
        partitions[key].add(record.partition())
    assert all(len(numbers) == 1 for numbers in partitions.values())
    return found


def _expected(stream: Stream) -> dict[str, list[str]]:
    out: dict[str, list[str]] = defaultdict(list)
    for transaction in stream.transactions:
        for event in transaction.events:
            if event.key is not None:
                out[json.dumps({"id": int(event.key["id"] or 0)})].append(str(event.position))
    return out


def test_records_keep_order_per_key_and_tombstones(kafka: KafkaServer) -> None:
    stream = random_stream(5, 40)
    truncates = sum(e.op == "t" for t in stream.transactions for e in t.events)
    deletes = sum(e.op == "d" for t in stream.transactions for e in t.events)
    stream.control(ControlKind.GAP)
    output = _output(kafka, topic="order.{table}")
    assert output.open() is None
    _write(output, stream.transactions)
    output.close()
    records = kafka.read("order.public.orders")
    assert _histories(records) == _expected(stream)
    assert sum(r.value() is None for r in records) == deletes
    assert Counter(r.partition() for r in records if r.key() is None) == Counter(dict.fromkeys(range(3), truncates))
    (control,) = kafka.read("shop.control")
    assert json.loads(control.value() or b"")["control"] == "gap"


@pytest.mark.slow
def test_broker_restart_loses_nothing(tmp_path: Path) -> None:
    """The broker is killed while a write waits: what the write was sent again for is counted, in order."""
    stream = random_stream(6, 200)
    with KafkaServer(tmp_path / "broker") as server:
        output = _output(server)
        output.open()
        half = len(stream.transactions) // 2
        for start in range(0, half, 20):
            _write(output, stream.transactions[start:start + 20])
        server.stop(crash=True)
        # The broker would end with the thread that starts it.
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(_write, output, stream.transactions[half:])
            time.sleep(2.0)
            assert not written.done()
            server.start()
            written.result()
        # As after a crash of the process: the last write again.
        _write(output, stream.transactions[-20:])
        output.close()
        histories = _histories(server.read("shop.public.orders"))
    duplicates = 0
    for key, expected in _expected(stream).items():
        first_seen = list(dict.fromkeys(histories[key]))
        assert first_seen == expected
        duplicates += len(histories[key]) - len(expected)
    again = sum(e.key is not None for t in stream.transactions[-20:] for e in t.events)
    assert duplicates == again, "the idempotent producer adds no duplicates to those of the second write"


def test_oversized_record_is_rejected_by_name(kafka: KafkaServer) -> None:
    stream = Stream(ID, Column("note", "text"), table="public.large")
    stream.insert(id="1", note="a")
    stream.insert(id="2", note="b" * 2_000_000)
    stream.insert(id="3", note="c")
    bad = stream.commit().events[1]
    output = _output(kafka)
    output.open()
    with pytest.raises(EventRejected, match=r"public\.large at 1/100/2") as caught:
        _write(output, stream.transactions)
    assert (caught.value.table, caught.value.position) == (bad.table, bad.position)
    output.close()


def test_unreachable_brokers_are_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 1.0)
    output = KafkaOutput(OutputContext("bus", ("shop",), NativeFormat()), brokers="127.0.0.1:1")
    with pytest.raises(OutputUnavailable, match="Kafka failed"):
        output.open()


def test_lease_is_asked_before_each_message(kafka: KafkaServer) -> None:
    """It runs out before the fourth message; what is queued then is dropped when the output is closed."""
    asked = iter(range(3))

    def require() -> None:
        if next(asked, None) is None:
            raise ProgressUnavailable("the lease has run out")

    context = OutputContext("bus", ("shop",), NativeFormat(), require_lease=require)
    output = KafkaOutput(context, brokers=kafka.brokers, topic="lapsed")
    output.open()
    with pytest.raises(ProgressUnavailable):
        _write(output, random_stream(7, 20).transactions)
    output.close()
    assert len(kafka.read("lapsed")) <= 3


def test_settings_that_guarantees_need_are_fixed() -> None:
    with pytest.raises(ConfigError, match="acks cannot be changed"):
        KafkaOutput(OutputContext("bus", ("shop",), NativeFormat()), brokers="b:1", settings={"acks": "1"})
    wrong = KafkaOutput(OutputContext("bus", ("shop",), NativeFormat()), brokers="b:1", settings={"no.such": "secret"})
    with pytest.raises(ConfigError, match="the client rejects a setting") as caught:
        wrong.open()
    assert "secret" not in str(caught.value)


def test_tables_with_same_legal_topic_are_refused(kafka: KafkaServer) -> None:
    output = _output(kafka)
    output.open()
    for name, ok in (('public."a b"', True), ('public."a#b"', False)):
        stream = Stream(ID, table=name)
        stream.insert(id="1")
        stream.commit()
        if ok:
            _write(output, stream.transactions)
        else:
            with pytest.raises(ConfigError, match="have the same topic"):
                _write(output, stream.transactions)
    output.close()
