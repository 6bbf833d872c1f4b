"""A second bootstrap into Kafka: each key that it lacks gets a tombstone, in every format and at a real broker."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from dblake.base.core.schema import Column
from dblake.serve.consume.model import ControlKind, Transaction
from dblake.serve.outputs.kafka.output import KafkaOutput
from dblake.serve.outputs.protocol import OutputContext
from dblake.serve.outputs.registry import make_format
from tests.support.kafka import KafkaServer
from tests.support.streams import ID, Stream

_NOTE = Column("note", "text")
_SETTINGS: Mapping[str, Mapping[str, Any]] = {"debezium": {"connector": "postgres", "database": "d"}}
_NUMBERS = itertools.count(1)


def _output(server: KafkaServer, topic: str, format_name: str = "native", name: str = "bus", **context: Any) -> Any:
    made = make_format(format_name, _SETTINGS.get(format_name))
    output = KafkaOutput(OutputContext(name, ("shop",), made, **context), brokers=server.brokers, tls="disable",
                         topic=topic)
    output.open()
    return output


def _bootstrap(stream: Stream, *ids: str, partition: int | None = None) -> list[Transaction]:
    """Return the transactions of a bootstrap of these rows, its control entries among them."""
    name, begin = f"b{next(_NUMBERS)}", len(stream.transactions)
    stream.control(ControlKind.BOOTSTRAP_STARTED, tables=[stream.schema.table])
    stream.rows.clear()
    for one in ids:
        stream.insert(op="r", origin="state", id=one, note=name)
    stream.commit()
    stream.control(ControlKind.BOOTSTRAP_FINISHED, tables=[stream.schema.table])
    found = stream.transactions[begin:]
    for transaction in found:
        transaction.bootstrap, transaction.partition = name, partition
    return found


def _keys(server: KafkaServer, topic: str) -> set[bytes]:
    """Return the keys that a compacted topic would have: those whose newest record has a value."""
    newest = {record.key(): record.value() for record in server.read(topic)}
    return {key for key, value in newest.items() if value is not None and isinstance(key, bytes)}


def _write(output: Any, transactions: list[Transaction]) -> None:
    output.write(transactions, transactions[-1].checkpoint)


@pytest.mark.parametrize("format_name", [
    "debezium", *(pytest.param(name, marks=pytest.mark.slow) for name in ("native", "avro"))
])
def test_second_bootstrap_removes_lacking_keys(kafka: KafkaServer, format_name: str) -> None:
    """What follows the bootstrap in one write stays when the write is repeated, as after a crash before its save."""
    topic, stream = f"again-{format_name}", Stream(ID, _NOTE)
    output = _output(kafka, topic, format_name)
    _write(output, _bootstrap(stream, "1", "2", "3"))
    first = {record.key() for record in kafka.read(topic)}
    stream.update(id="2", note="changed")
    stream.insert(id="4", note="new")
    _write(output, [stream.commit()])
    output.close()
    again = _bootstrap(stream, "1", "3")
    stream.insert(id="5", note="later")
    stream.delete("1")
    again.append(stream.commit())
    for _ in range(2):
        output = _output(kafka, topic, format_name)
        _write(output, again)
        output.close()
        expected = {output._format.encode_key(event) for event in [*again[1].events[1:], *again[-1].events[:1]]}
        assert _keys(kafka, topic) == expected
    kept = output._format.encode_key(again[-1].events[0])
    assert [r.value() is None for r in kafka.read(topic) if r.key() == kept] == [False, False]
    assert len(first) == 3 and len(expected) == 2


@pytest.mark.slow
def test_bootstrap_resumed_elsewhere_removes_keys(kafka: KafkaServer) -> None:
    """The second half of its rows comes from another process; a truncated table's bootstrap removes every key."""
    topic, stream = "halves", Stream(ID, _NOTE)
    for parts in (_bootstrap(stream, "1", "2"), _bootstrap(stream, "2"), _bootstrap(stream, "7", "8")):
        for transaction in parts:
            output = _output(kafka, topic)
            _write(output, [transaction])
            output.close()
    assert _keys(kafka, topic) == {b'{"id": 7}', b'{"id": 8}'}


def test_records_of_others_are_no_rows_of_bootstrap(kafka: KafkaServer) -> None:
    """Another output, and another partition of the group, produce to the same topic: their keys stay."""
    topic, stream = "shared", Stream(ID, _NOTE)
    other = _output(kafka, topic, name="other")
    _write(other, _bootstrap(stream, "9"))
    other.close()
    group = _output(kafka, topic, partitions=2)
    for partition, ids in ((0, ("2", "4")), (1, ("1", "3")), (0, ("2",))):
        _write(group, _bootstrap(stream, *ids, partition=partition))
    group.close()
    assert _keys(kafka, topic) == {f'{{"id": {n}}}'.encode() for n in (1, 2, 3, 9)}
