"""The keys of a topic that a complete bootstrap has not delivered again: rows that the source no longer has.

Place: below ``output``, which produces their tombstones. The topic itself is the only record of what was delivered, so
it is read once, partition by partition. Guarantee: a key counts if its newest record is this output's own, has a value,
and does not belong to the bootstrap; records of other producers never count. Memory is bounded: keys of one partition
lie in a temporary file.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

OWNER, BOOTSTRAP = "dblake", "dblake-bootstrap"
"""Headers of a record: the output that produced it, and the bootstrap that it belongs to."""
_TIMEOUT_SECONDS = 15.0
_AT_ONCE = 1000
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)

Headers = list[tuple[str, str | bytes | None]]


class TopicReader:
    """Reads topics with the connection settings of a producer; ``require_lease`` is called between two reads."""

    def __init__(self, settings: Mapping[str, Any], log: logging.Logger, require_lease: Callable[[], None]) -> None:
        self._require_lease = require_lease
        self.topic: str | None = None
        """The topic that was read last, for errors."""
        self._consumer = Consumer({
            # Partitions are assigned, and no offset is committed: the group never exists.
            **settings, "group.id": "dblake", "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "earliest", "allow.auto.create.topics": False,
        }, logger=log)

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._consumer.close()

    def is_empty(self, topic: str) -> bool:
        """Return True if a topic has no record, or does not exist."""
        return all(low == high for low, high in self._ends(topic).values())

    def find_obsolete(self, topic: str, owner: object, bootstrap: object) -> Iterator[tuple[int, bytes]]:
        """Yield the partition and key of every row that the owner has delivered, but not in the bootstrap, if any."""
        for number, (low, high) in self._ends(topic).items():
            if low == high:
                continue
            # Without a name, SQLite's database is a temporary file once it is larger than its cache.
            with closing(sqlite3.connect("", isolation_level=None)) as keys:
                keys.execute("PRAGMA journal_mode = OFF")
                keys.execute("CREATE TABLE obsolete (key BLOB PRIMARY KEY) WITHOUT ROWID")
                for records in self._read(topic, number, low):
                    for key, is_obsolete in _newest(records, owner, bootstrap).items():
                        keys.execute("INSERT OR IGNORE INTO obsolete VALUES (?)" if is_obsolete
                                     else "DELETE FROM obsolete WHERE key = ?", (key,))
                for (key,) in keys.execute("SELECT key FROM obsolete"):
                    yield number, key

    def _ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset and the one after the last, by partition; none for a topic that does not exist."""
        self.topic = topic
        described = self._consumer.list_topics(topic, timeout=_TIMEOUT_SECONDS).topics[topic]
        if described.error is not None:
            if described.error.code() in _NO_TOPIC:
                return {}
            raise KafkaException(described.error)
        return {number: self._end(topic, number) for number in described.partitions}

    def _end(self, topic: str, number: int) -> tuple[int, int]:
        ends = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_TIMEOUT_SECONDS)
        if ends is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        low, high = ends
        return low, high

    def _read(self, topic: str, number: int, low: int) -> Iterator[list[Message]]:
        """Yield the records of a partition up to its end."""
        self._consumer.assign([TopicPartition(topic, number, low)])
        silent = 0
        while True:
            self._require_lease()
            first = self._consumer.poll(1.0)
            # ``consume`` alone waits for so many messages.
            messages = [] if first is None else [first, *self._consumer.consume(_AT_ONCE, timeout=0)]
            records = [message for message in messages if message.error() is None]
            yield records
            for message in messages:
                error = message.error()
                if error is None:
                    continue
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                if not error.retriable():
                    raise KafkaException(error)
            silent = 0 if records else silent + 1
            if silent > _TIMEOUT_SECONDS:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _newest(records: list[Message], owner: object, bootstrap: object) -> dict[bytes, bool]:
    """Return by key whether its newest record is a row that the bootstrap did not deliver."""
    newest: dict[bytes, bool] = {}
    for record in records:
        key = record.key()
        if isinstance(key, bytes):
            headers = dict(record.headers() or ())
            newest[key] = (
                record.value() is not None and headers.get(OWNER) == owner
                and (bootstrap is None or headers.get(BOOTSTRAP) != bootstrap)
            )
    return newest
