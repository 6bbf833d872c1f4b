"""Errors of a Kafka cluster, by their cause: brokers, what is wrong, what to do.

Place: below ``output``. The only module that matches the text of librdkafka's errors: its code for a failed connection
is the same whatever the cause. Guarantee: an error has no value of a setting and no record; it is retryable unless only
a person can correct the cause.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

from dblake.base.core.connection_faults import (
    REFUSED,
    TIMED_OUT,
    UNKNOWN_HOST,
    UNRESOLVED,
    ConnectionFault,
)
from dblake.base.core.errors import ConsumeError, DblakeError, EventRejected, OutputUnavailable
from dblake.serve.consume.model import Event

_REJECTED = frozenset((
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError._BAD_MSG, KafkaError.INVALID_RECORD,
))
_LOGIN = ConnectionFault("the broker rejects user or password", "correct sasl.* in {settings}")
_MECHANISM = ConnectionFault("the broker has another SASL mechanism", "correct sasl.mechanism in {settings}")
_UNVERIFIED = ConnectionFault(
    "the broker's certificate cannot be verified",
    "name its CA's file in {tls_ca}, name the host of the certificate in {host}, or set {tls} to require",
)
_CLOSED = ConnectionFault(
    "the broker ends the TLS handshake, so it may not speak TLS",
    "set {tls} to disable if it does not, then run again", is_permanent=False,
)
_NO_ANSWER = ConnectionFault(
    "no broker answers",
    "check that the brokers are up and reachable, and require what {tls} and {settings} state; then run again",
    is_permanent=False,
)
_TEXTS = (
    ("Temporary failure in name resolution", UNRESOLVED),
    ("Failed to resolve", UNKNOWN_HOST),
    ("certificate verify failed", _UNVERIFIED),
    ("SSL connection closed by peer", _CLOSED),
    ("Connection refused", REFUSED),
    ("timed out", TIMED_OUT),
)
"""Parts of librdkafka's texts for a connection that failed; the first that is contained counts."""
_CODES = {
    KafkaError._AUTHENTICATION: _LOGIN, KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _MECHANISM, KafkaError._RESOLVE: UNKNOWN_HOST,
    KafkaError._ALL_BROKERS_DOWN: _NO_ANSWER, KafkaError._TRANSPORT: _NO_ANSWER, KafkaError._TIMED_OUT: _NO_ANSWER,
    KafkaError._MSG_TIMED_OUT: _NO_ANSWER,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ConnectionFault(
        "the user lacks a permission on the cluster", "allow it IDEMPOTENT_WRITE"
    ),
    KafkaError.NOT_ENOUGH_REPLICAS: ConnectionFault(
        "a topic has fewer in-sync replicas than min.insync.replicas", "start its brokers, then run again", False
    ),
}
_OF_TOPIC = {
    KafkaError._UNKNOWN_TOPIC: ("does not exist", "create it"),
    KafkaError.UNKNOWN_TOPIC_OR_PART: ("does not exist, and the cluster creates none", "create it"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "may not be used by this user", "allow it DESCRIBE, READ, WRITE and CREATE"
    ),
    KafkaError.TOPIC_EXCEPTION: ("has a name that the cluster rejects", "correct the output's topic"),
    KafkaError.POLICY_VIOLATION: ("violates a policy of the cluster", "create it as the policy requires"),
}
_PERMANENT = frozenset((KafkaError._SSL, KafkaError.INVALID_REQUIRED_ACKS, KafkaError._INVALID_ARG))


def kafka_failure(
    name: str, brokers: str, error: KafkaError, topic: str | None = None, event: Event | None = None
) -> DblakeError:
    """Return the error of output ``name`` for one of Kafka; ``topic`` and ``event`` are those it concerns, if known."""
    where = f"output {name}: Kafka at {brokers}"
    if event is not None and error.code() in _REJECTED:
        return EventRejected(
            f"{where} rejects the record of table {event.table} at {event.position} ({error.name()})",
            table=event.table, position=event.position,
            next_step="raise message.max.bytes in the output's settings and max.message.bytes of the topic",
        )
    if topic is not None and error.code() in _OF_TOPIC:
        cause, next_step = _OF_TOPIC[error.code()]
        return ConsumeError(f"{where}: topic {topic} {cause}", next_step=f"{next_step}, then run again")
    # The text is more precise than the code, which is the same for all connections that fail.
    fault = next((fault for part, fault in _TEXTS if part in error.str()), _CODES.get(error.code()))
    if fault is None:
        is_permanent = error.code() in _PERMANENT and not error.retriable()
        fault = ConnectionFault(
            f"error {error.name()}", "see the brokers' log for the cause, then run again", is_permanent
        )
    keys = {key: f"outputs.{name}.{key}" for key in ("tls", "tls_ca", "settings")}
    kind = ConsumeError if fault.is_permanent else OutputUnavailable
    return kind(f"{where}: {fault.cause}", next_step=fault.next_step(host=f"outputs.{name}.brokers", **keys))
