"""The Kafka output against a real broker: per-key order, restarts, duplicates, tombstones, errors by kind."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from dblake.base.core.errors import ConfigError, ConsumeError, EventRejected, OutputUnavailable, ProgressUnavailable
from dblake.base.core.schema import Column
from dblake.serve.consume.model import ControlKind, Transaction
from dblake.serve.outputs.kafka import output as module
from dblake.serve.outputs.kafka.output import KafkaOutput
from dblake.serve.outputs.native import NativeFormat
from dblake.serve.outputs.protocol import OutputContext
from tests.support.certificates import create_authority, create_signed
from tests.support.kafka import KafkaServer
from tests.support.streams import ID, Stream, random_stream


def _output(server: KafkaServer, **settings: Any) -> KafkaOutput:
    context = OutputContext("bus", ("shop",), NativeFormat())
    return KafkaOutput(context, **{"brokers": server.brokers, "tls": "disable", **settings})


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
    output = KafkaOutput(OutputContext("bus", ("shop",), NativeFormat()), brokers="127.0.0.1:1", tls="disable")
    with pytest.raises(OutputUnavailable, match=r"output bus: Kafka at 127\.0\.0\.1:1: connection refused") as caught:
        output.open()
    assert caught.value.next_step == "check that the server is up and reachable at outputs.bus.brokers, then run again"


def test_lease_is_asked_before_each_message(kafka: KafkaServer) -> None:
    """It runs out before the fourth message; what is queued then is dropped when the output is closed."""
    asked = iter(range(3))

    def require() -> None:
        if next(asked, None) is None:
            raise ProgressUnavailable("the lease has run out")

    context = OutputContext("bus", ("shop",), NativeFormat(), require_lease=require)
    output = KafkaOutput(context, brokers=kafka.brokers, topic="lapsed", tls="disable")
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


_JAAS = ('org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="x" '
         'user_app="hunter2";')


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the addresses of a broker by protocol, and the file of the authority that has signed its certificate."""
    folder = tmp_path_factory.mktemp("secured")
    authority = create_authority(folder, "ours")
    own = create_signed(folder, "localhost", authority)
    server = KafkaServer(folder / "broker", **{"auto.create.topics.enable": "false"})
    addresses = {
        "SSL": server.add_listener("SSL", own),
        "SASL_SSL": server.add_listener(
            "SASL_SSL", own, **{"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": _JAAS}
        ),
        "PLAINTEXT": server.brokers, "ca": str(authority.certificate),
    }
    with server:
        yield addresses


_LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "app", "sasl.password": "hunter2"}


@pytest.mark.parametrize(("listener", "host", "settings", "fault", "next_step"), [
    ("SSL", "localhost", {"tls_ca": "ca"}, None, ""),
    ("SSL", "localhost", {"tls": "require"}, None, ""),
    ("SASL_SSL", "localhost", {"tls_ca": "ca", "settings": _LOGIN}, None, ""),
    ("PLAINTEXT", "localhost", {"tls": "disable"}, None, ""),
    ("SSL", "localhost", {}, "certificate cannot be verified", "name its CA's file in outputs.bus.tls_ca"),
    pytest.param("SSL", "127.0.0.1", {"tls_ca": "ca"}, "certificate cannot be verified",
                 "name the host of the certificate in outputs.bus.brokers", marks=pytest.mark.slow),
    pytest.param("PLAINTEXT", "localhost", {"tls_ca": "ca"}, "it may not speak TLS", "set outputs.bus.tls to disable",
                 marks=pytest.mark.slow),
    pytest.param("SSL", "localhost", {"tls": "disable"}, "no broker answers", "require what outputs.bus.tls and",
                 marks=pytest.mark.slow),
    ("SASL_SSL", "localhost", {"tls_ca": "ca", "settings": _LOGIN | {"sasl.password": "wrong"}},
     "the broker rejects user or password", "correct sasl.* in outputs.bus.settings"),
    pytest.param("PLAINTEXT", "no.such.host.invalid", {"tls": "disable"}, "unknown host", "correct outputs.bus.brokers",
                 marks=pytest.mark.slow),
], ids=["verified", "required", "login", "plain", "untrusted", "other-host", "no-tls", "needs-tls", "password", "host"])
def test_connection_by_tls_and_login(
    secured: dict[str, str], monkeypatch: pytest.MonkeyPatch, listener: str, host: str, settings: dict[str, Any],
    fault: str | None, next_step: str,
) -> None:
    """Certificates are verified by default; each error has the brokers, the cause, and the key to change."""
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 5.0 if fault is None else 1.0)
    brokers = f"{host}:{secured[listener].partition(':')[2]}"
    own = settings | ({"tls_ca": secured["ca"]} if "tls_ca" in settings else {})
    output = KafkaOutput(OutputContext("bus", ("shop",), NativeFormat()), brokers=brokers, **own)
    try:
        if fault is None:
            output.open()
            return
        with pytest.raises(ConsumeError, match=f"output bus: Kafka at {brokers}: .*{fault}") as caught:
            output.open()
        assert next_step in caught.value.next_step
        assert not re.search(r"Error|Exception|_[A-Z]|hunter2", str(caught.value))
    finally:
        output.close()


def test_missing_topic_is_named(secured: dict[str, str]) -> None:
    output = KafkaOutput(
        OutputContext("bus", ("shop",), NativeFormat()), brokers=secured["PLAINTEXT"], tls="disable", topic="none",
        settings={"message.timeout.ms": 5000} | {"topic.metadata.propagation.max.ms": 0},
    )
    output.open()
    with pytest.raises(ConsumeError, match=r"Kafka at .*: topic none does not exist") as caught:
        _write(output, random_stream(8, 2).transactions)
    assert caught.value.next_step == "create it, then run again"
    output.close()


@pytest.mark.parametrize("key", ["security.protocol", "enable.ssl.certificate.verification", "ssl.ca.location"])
def test_tls_of_client_settings_is_rejected(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"outputs\.bus\.settings: {key} is determined by tls"):
        KafkaOutput(OutputContext("bus", ("shop",), NativeFormat()), brokers="b:1", settings={key: "x"})
