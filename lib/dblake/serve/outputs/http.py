"""Send events to a web service: POST requests of JSON lines, with an idempotency key.

Place: the output of type ``http``. Guarantee: when ``write`` returns, the service has acknowledged every record with a
status 2xx; requests are sent one after another, in commit order. A request's ``Idempotency-Key`` names the source, in a
group also the partition, and its first and last record: a service that records the keys applies every event once. After
a failure, ``consume`` delivers again from the last checkpoint.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from dblake.base.core.errors import ConfigError, ConsumeError, EventRejected, OutputUnavailable
from dblake.base.core.failpoints import failpoint
from dblake.base.core.tls import Tls
from dblake.serve.consume.model import Control, Event, Transaction
from dblake.serve.outputs.protocol import OutputContext
from dblake.serve.outputs.web import WebService

_CONTENT_TYPE = "application/x-ndjson"
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 30.0
_BUSY = frozenset((408, 409, 423, 425, 429))
"""Status codes below 500 after which the same request may succeed."""
_REFUSES_CONTENT = frozenset((400, 413, 415, 422))
"""Status codes that an event in the request causes; other codes of the kind 4xx concern all requests."""


@dataclass(frozen=True, slots=True)
class _Record:
    """One line: an event, or a control entry. ``stream`` is what its positions rise in: a source, or a partition.

    ``number`` counts the entries of a write, from 0.
    """

    number: int
    body: bytes
    item: Event | Control
    stream: str
    bootstrap: str

    @property
    def label(self) -> str:
        """Identify it among all of its stream: rows of a bootstrap repeat the positions of earlier ones."""
        kind = f"{self.item.kind}({quote(self.item.table or '')})@" if isinstance(self.item, Control) else ""
        return f"{f'{self.bootstrap}:' if self.bootstrap else ''}{kind}{self.item.position}"


class HttpOutput:
    """The output of type ``http``; ``config.outputs`` documents the settings."""

    def __init__(
        self, context: OutputContext, *, url: str, batch: int = 500, timeout_seconds: float = 30.0,
        headers: Mapping[str, str] | None = None, tls: Tls = "verify", tls_ca: str | None = None,
    ) -> None:
        self._name = context.name
        self._format, self._require_lease = context.format, context.require_lease
        self._url, self._batch = url, batch
        secret = {
            name.removeprefix("headers."): value for name, value in context.secrets.items()
            if name.startswith("headers.")
        }
        self._headers = {"Content-Type": _CONTENT_TYPE, **(headers or {}), **secret}
        self._service = WebService(
            f"output {context.name}: the service", f"outputs.{context.name}.url", url, tls, tls_ca, timeout_seconds
        )
        self._delivered = 0
        """Entries that the service has of a write that was rejected: the first ones of its next attempt."""

    def open(self) -> str | None:
        """Connect at the first request only. Return None: the service holds no checkpoint."""
        self._delivered = 0
        return None

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:  # noqa: ARG002
        """Send the events of transactions, in requests of up to ``batch``.

        Raises EventRejected for an event that the service refuses, OutputUnavailable where a retry may succeed, and
        ConsumeError where only a person can correct the cause.
        """
        for records in _requests(self._records(transactions), self._batch):
            self._send(records)
        failpoint("outputs.http.sent")
        self._delivered = 0

    def close(self) -> None:
        """Close the connections to the service."""
        self._service.close()

    def _records(self, transactions: Sequence[Transaction]) -> Iterator[list[_Record]]:
        """Yield the records of each transaction, without those that a rejected write has delivered already."""
        numbers, delivered = itertools.count(), self._delivered
        for transaction in transactions:
            partition, bootstrap = transaction.partition, transaction.bootstrap
            stream = transaction.source if partition is None else f"{transaction.source}/{partition}"
            if transaction.control and (number := next(numbers)) >= delivered:
                body = self._format.encode_control(transaction.control)
                yield [] if body is None else [_Record(number, body, transaction.control, stream, bootstrap)]
            records = []
            for event, number in zip(transaction.events, numbers, strict=False):
                body = self._format.encode(event) if number >= delivered else None
                if body is not None:
                    records.append(_Record(number, body, event, stream, bootstrap))
                if len(records) >= self._batch:
                    yield records
                    records = []
            yield records

    def _send(self, records: Sequence[_Record]) -> None:
        """Send one request; divide it to find the event that the service refuses."""
        if any(b"\n" in record.body for record in records):
            raise ConfigError(
                f"outputs.{self._name}.format: its records have line breaks, so they cannot be sent as lines",
                next_step="use the format native or debezium",
            )
        status = self._post(records)
        if status in _REFUSES_CONTENT and len(records) > 1:
            half = len(records) // 2
            self._send(records[:half])
            self._send(records[half:])
            return
        if status in _REFUSES_CONTENT and isinstance(event := records[0].item, Event):
            raise EventRejected(
                f"{self._service.where}: status {status} for the event of table {event.table} at {event.position}",
                table=event.table, position=event.position,
                next_step="see the service's log for the cause",
            )
        if not 200 <= status < 300:
            raise ConsumeError(
                f"{self._service.where}: status {status}",
                next_step=f"correct outputs.{self._name}.url or its headers; the service's log has the cause",
            )
        self._delivered = records[-1].number + 1

    def _post(self, records: Sequence[_Record]) -> int:
        """Send one request, again while the service is busy; return its status."""
        body = b"".join(record.body + b"\n" for record in records)
        headers = {**self._headers, "Idempotency-Key": _key(records)}
        pause, failure = _FIRST_PAUSE_SECONDS, OutputUnavailable(self._service.where)
        for attempt in range(_ATTEMPTS):
            self._require_lease()
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311
            try:
                response = self._service.post(self._url, body, headers)
            except OutputUnavailable as error:
                failure = error
            else:
                if response.status < 500 and response.status not in _BUSY:
                    return response.status
                failure = OutputUnavailable(
                    f"{self._service.where}: status {response.status}",
                    next_step="see the service's log for the cause, then run again",
                )
                wait = _retry_after(response.headers.get("Retry-After"), wait)
            if attempt + 1 < _ATTEMPTS:
                time.sleep(wait)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        raise failure


def _requests(transactions: Iterator[list[_Record]], limit: int) -> Iterator[list[_Record]]:
    """Join records to requests of one stream; a transaction is divided only if it is larger than a request."""
    request: list[_Record] = []
    for records in transactions:
        if request and records and (
            len(request) + len(records) > limit or records[0].stream != request[0].stream
        ):
            yield request
            request = []
        request.extend(records)
    if request:
        yield request


def _key(records: Sequence[_Record]) -> str:
    return f"{records[0].stream}:{records[0].label}-{records[-1].label}"


def _retry_after(header: str | None, default: float) -> float:
    """Return the seconds that a service requests, up to a limit; a date counts as no request."""
    return min(float(header), _MAX_PAUSE_SECONDS) if header and header.isdigit() else default
