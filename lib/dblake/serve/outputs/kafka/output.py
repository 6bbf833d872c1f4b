"""Produce events to Kafka: a topic per table, the primary key as record key, an idempotent producer.

Place: the output of type ``kafka``. Guarantee: when ``write`` returns, all in-sync replicas have every record; records
of one key are in commit order, because they share a partition and the producer is idempotent. A truncate goes to every
partition of its topic, so that it is in order with all keys. After a failure, ``consume`` delivers again from the last
checkpoint: consumers may see records again, in the same order, with the same ``position``. At the end of a bootstrap
each key that it lacks gets a tombstone (``obsolete``).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from dblake.base.core.errors import ConfigError, DblakeError
from dblake.base.core.failpoints import failpoint
from dblake.base.core.op import Op
from dblake.base.core.tls import Tls
from dblake.serve.consume.model import Control, ControlKind, Event, Transaction
from dblake.serve.outputs.kafka.errors import kafka_failure
from dblake.serve.outputs.kafka.obsolete import BOOTSTRAP, OWNER, Headers, TopicReader
from dblake.serve.outputs.protocol import OutputContext

# The client logs each attempt to connect. What matters reaches the error that ``write`` raises.
_CLIENT_LOG = logging.getLogger(f"{__name__}.client")
_CLIENT_LOG.setLevel(logging.CRITICAL)
_CONNECT_SECONDS = 15.0
_DELIVERY_SECONDS = 120
_CLOSE_SECONDS = 5.0
_MAX_TOPIC_CHARACTERS = 249
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")

#: Settings on which the guarantees depend.
_OWN: dict[str, Any] = {
    "enable.idempotence": True, "acks": "all", "max.in.flight.requests.per.connection": 5,
    # The partitioner of Java's producer, so that a key's partition is the same whichever client wrote it.
    "partitioner": "murmur2_random", "delivery.timeout.ms": 1000 * _DELIVERY_SECONDS, "linger.ms": 5,
    "compression.type": "lz4", "queue.buffering.max.kbytes": 65_536,
}
_FIXED = ("bootstrap.servers", "metadata.broker.list", "enable.idempotence", "acks", "request.required.acks",
          "max.in.flight.requests.per.connection", "max.in.flight", "transactional.id")
_OF_TLS = ("security.protocol", "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm",
           "ssl.ca.location")
"""Settings that follow from ``tls``, ``tls_ca`` and whether there is a setting of SASL."""


class KafkaOutput:
    """The output of type ``kafka``; ``config.outputs`` documents the settings."""

    def __init__(
        self, context: OutputContext, *, brokers: str, topic: str = "{source}.{table}",
        control_topic: str | None = "{source}.control", tombstones: bool = True,
        settings: Mapping[str, Any] | None = None, tls: Tls = "verify", tls_ca: str | None = None,
    ) -> None:
        self._name, self._brokers = context.name, brokers
        self._format, self._require_lease = context.format, context.require_lease
        self._topic, self._control_topic = topic, control_topic
        self._has_tombstones = tombstones
        secret = {
            name.removeprefix("settings."): value for name, value in context.secrets.items()
            if name.startswith("settings.")
        }
        given = {**(settings or {}), **secret}
        _check_settings(context.name, given)
        self._connection = {**given, **_tls_settings(given, tls, tls_ca), "bootstrap.servers": brokers}
        division = "" if context.partitions is None else f"/{context.partitions}"
        self._owner = f"{context.name}{division}"
        self._producer: Producer | None = None
        self._topics: dict[tuple[str, str], str] = {}
        self._fresh: set[str] = set()
        """Topics that were empty when the bootstrap began."""
        self._compacted: set[str] = set()
        """Topics that have rejected a record without a key."""
        self._failure: DblakeError | None = None
        self._attempt = 0
        self._broker_error: KafkaError | None = None

    def open(self) -> str | None:
        """Connect to the cluster. Kafka holds no checkpoint of the output: return None."""
        self._failure, self._broker_error = None, None
        try:
            self._producer = Producer({**_OWN, **self._connection, "error_cb": self._note_error}, logger=_CLIENT_LOG)
        except KafkaException as error:
            # Its text quotes settings' names, never their values.
            raise ConfigError(
                f"outputs.{self._name}.settings: the client rejects a setting: {error.args[0].name()}",
                next_step="correct the key or value; librdkafka's CONFIGURATION.md lists them",
            ) from error
        try:
            self._producer.list_topics(timeout=_CONNECT_SECONDS)
        except KafkaException as error:
            # The cause is what a broker's connection failed with.
            self._producer.poll(0)
            raise self._error_of(self._broker_error or error.args[0]) from error
        return None

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:  # noqa: ARG002
        """Produce the events of transactions and wait until the cluster has them.

        Raises EventRejected for a record that the cluster refuses, OutputUnavailable where a retry may succeed, and
        ConsumeError where only a person can correct the cause.
        """
        self._failure = None
        self._attempt += 1
        bootstrap = ""
        for transaction in transactions:
            # What follows a bootstrap in the same write may be written again behind its end.
            bootstrap = transaction.bootstrap or bootstrap
            headers = self._headers(transaction, bootstrap)
            if transaction.control:
                self._apply_bootstrap(transaction.control, headers)
                self._produce_control(transaction.control, headers)
            for event in transaction.events:
                self._produce_event(event, headers)
                self._raise_failure()
        failpoint("outputs.kafka.produced")
        self._flush()
        failpoint("outputs.kafka.flushed")

    def close(self) -> None:
        """Close the producer; records that ``write`` has not waited for are dropped, and delivered again later."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(_CLOSE_SECONDS)
            self._producer = None

    def _flush(self) -> None:
        """Wait until the cluster has acknowledged all records."""
        assert self._producer is not None
        deadline = time.monotonic() + _DELIVERY_SECONDS + 10
        while self._producer.flush(1.0) and not self._failure:
            self._require_lease()
            if time.monotonic() > deadline:
                self._failure = self._error_of(self._broker_error or KafkaError(KafkaError._MSG_TIMED_OUT))
        self._raise_failure()

    def _headers(self, transaction: Transaction, bootstrap: str) -> Headers:
        partition = "" if transaction.partition is None else f"/{transaction.partition}"
        owner: Headers = [(OWNER, f"{transaction.source}/{self._owner}{partition}".encode())]
        return [*owner, (BOOTSTRAP, bootstrap.encode())] if bootstrap else owner

    def _apply_bootstrap(self, control: Control, headers: Headers) -> None:
        """Note which topics are empty when a bootstrap begins; at its end, remove the keys that it lacks."""
        begins = control.kind is ControlKind.BOOTSTRAP_STARTED
        known = dict(headers)
        is_identified = BOOTSTRAP in known and (begins or control.kind is ControlKind.BOOTSTRAP_FINISHED)
        if not self._has_tombstones or not is_identified:
            return
        self._flush()
        topics = {self._topic_of(control.source, table) for table in control.details.get("tables", ())}
        with self._reading() as reader:
            if begins:
                self._fresh = {topic for topic in topics if reader.is_empty(topic)}
                return
            for topic in sorted(topics - self._fresh):
                self._remove(reader, topic, headers, known[BOOTSTRAP])

    def _produce_event(self, event: Event, headers: Headers) -> None:
        value = self._format.encode(event)
        if value is None:
            return
        topic = self._topic_of(event.source, event.table)
        if event.op == Op.TRUNCATE:
            self._produce_truncate(topic, value, event, headers)
            return
        key = self._format.encode_key(event)
        self._produce(topic, key, value, event, headers)
        if event.op == Op.DELETE and self._has_tombstones and key is not None:
            self._produce(topic, key, None, event, headers)

    def _produce_truncate(self, topic: str, value: bytes, event: Event, headers: Headers) -> None:
        """Produce a truncate to every partition; a compacted topic, which rejects records without a key, is emptied."""
        if topic not in self._compacted:
            for number in range(self._partition_count(topic)):
                self._produce(topic, None, value, event, headers, number)
        self._flush()
        if topic in self._compacted:
            with self._reading() as reader:
                self._remove(reader, topic, headers, None)

    def _remove(self, reader: TopicReader, topic: str, headers: Headers, bootstrap: object) -> None:
        """Produce a tombstone for each key of this output's that a bootstrap did not deliver; None: for each key."""
        for partition, key in reader.find_obsolete(topic, dict(headers)[OWNER], bootstrap):
            self._produce(topic, key, None, None, headers, partition)

    @contextmanager
    def _reading(self) -> Iterator[TopicReader]:
        """Open a reader of what the cluster has."""
        reader = TopicReader(self._connection, _CLIENT_LOG, self._require_lease)
        try:
            yield reader
        except KafkaException as error:
            raise self._error_of(error.args[0], reader.topic) from error
        finally:
            reader.close()

    def _produce_control(self, control: Control, headers: Headers) -> None:
        value = self._format.encode_control(control)
        if value is not None and self._control_topic is not None:
            topic = _legal_topic(self._control_topic.replace("{source}", control.source))
            self._produce(topic, control.source.encode(), value, None, headers)

    def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, event: Event | None, headers: Headers,
        partition: int = -1,
    ) -> None:
        assert self._producer is not None
        while True:
            self._require_lease()
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=partial(self._on_delivery, self._attempt, event),
                    headers=headers,
                )
            except BufferError:
                # The queue is full: wait for acknowledgements, which bounds the memory.
                self._producer.poll(0.5)
                self._raise_failure()
                continue
            except KafkaException as error:
                raise self._error_of(error.args[0], topic, event) from error
            break
        self._producer.poll(0)

    def _on_delivery(
        self, attempt: int, event: Event | None, error: KafkaError | None, message: Message
    ) -> None:
        # A record of a write that failed before may fail late; the same record is in this write too.
        if error is not None and self._failure is None and attempt == self._attempt:
            is_truncate = event is not None and event.op == Op.TRUNCATE
            # The keys of a topic without {table} in its name may be other tables'.
            is_of_table = self._has_tombstones and "{table}" in self._topic
            if error.code() == KafkaError.INVALID_RECORD and is_truncate and is_of_table:
                self._compacted.add(str(message.topic()))
                return
            if error.code() == KafkaError._MSG_TIMED_OUT:
                error = self._broker_error or error
            self._failure = self._error_of(error, message.topic(), event)

    def _note_error(self, error: KafkaError) -> None:
        # "All brokers down" follows the error of each broker, and names no cause.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._broker_error is None:
            self._broker_error = error
        if error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
            self._failure = self._failure or self._error_of(error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _error_of(self, error: KafkaError, topic: str | None = None, event: Event | None = None) -> DblakeError:
        return kafka_failure(self._name, self._brokers, error, topic, event)

    def _partition_count(self, topic: str) -> int:
        # The records before may be the ones that create the topic.
        self._flush()
        assert self._producer is not None
        try:
            found = self._producer.list_topics(topic, timeout=_CONNECT_SECONDS).topics[topic].partitions
        except KafkaException as error:
            raise self._error_of(error.args[0], topic) from error
        # A topic that its first record is about to create has none yet.
        return len(found) or 1

    def _topic_of(self, source: str, table: str) -> str:
        topic = self._topics.get((source, table))
        if topic is None:
            topic = _legal_topic(self._topic.replace("{source}", source).replace("{table}", table))
            other = next((of for of, known in self._topics.items() if known == topic), None)
            if other and "{table}" in self._topic:
                raise ConfigError(
                    f"output {self._name}: tables {table} and {other[1]} have the same topic {topic}: Kafka's names "
                    "have letters, digits, dot, _ and - only",
                    next_step="exclude one of the tables, and deliver it by an output with another topic",
                )
            self._topics[source, table] = topic
        return topic


def _check_settings(output: str, given: Mapping[str, Any]) -> None:
    where = f"outputs.{output}.settings"
    fixed = sorted(set(given).intersection(_FIXED))
    if fixed:
        raise ConfigError(f"{where}: {', '.join(fixed)} cannot be changed", next_step="remove the key")
    of_tls = sorted(set(given).intersection(_OF_TLS))
    if of_tls:
        raise ConfigError(
            f"{where}: {', '.join(of_tls)} is determined by tls, tls_ca and sasl.*",
            next_step=f"remove the key; set outputs.{output}.tls to disable for plain text",
        )


def _tls_settings(given: Mapping[str, Any], tls: Tls, tls_ca: str | None) -> dict[str, Any]:
    has_login = any(key.startswith("sasl.") for key in given)
    protocol = f"{'SASL_' * has_login}{'PLAINTEXT' if tls == 'disable' else 'SSL'}"
    if tls == "disable":
        return {"security.protocol": protocol}
    is_verified = tls == "verify"
    return {
        "security.protocol": protocol, "enable.ssl.certificate.verification": is_verified,
        "ssl.endpoint.identification.algorithm": "https" if is_verified else "none",
        **({"ssl.ca.location": tls_ca} if tls_ca else {}),
    }


def _legal_topic(name: str) -> str:
    """Return a topic's name with _ for what Kafka does not allow, as Debezium writes it."""
    return _ILLEGAL.sub("_", name)[:_MAX_TOPIC_CHARACTERS]
