"""The HTTP output against a real server: batches, idempotency keys, retries, rejected events, TLS."""

from __future__ import annotations

import ssl
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dblake.base.core.errors import ConfigError, ConsumeError, EventRejected, OutputUnavailable, ProgressUnavailable
from dblake.base.core.position import Position
from dblake.base.core.schema import Column
from dblake.base.core.tls import Tls
from dblake.serve.consume.model import ControlKind, Event, Transaction
from dblake.serve.outputs import http
from dblake.serve.outputs.http import HttpOutput
from dblake.serve.outputs.native import NativeFormat
from dblake.serve.outputs.protocol import OutputContext
from tests.support.certificates import create_authority, create_signed
from tests.support.streams import ID, Stream
from tests.support.web_service import Service, serve_requests


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(http, "_FIRST_PAUSE_SECONDS", 0.01)
    yield from serve_requests(None)


def _output(service: Service, **settings: Any) -> HttpOutput:
    secrets = {"headers.Authorization": "Bearer hunter2", "format_settings.password": "other"}
    output = HttpOutput(OutputContext("hook", ("shop",), NativeFormat(), secrets), **{
        "url": service.url, "tls": "verify" if service.url.startswith("https") else "disable", **settings,
    })
    output.open()
    return output


def _stream(transactions: int, events: int = 2) -> Stream:
    stream = Stream(ID, Column("note", "text"))
    for number in range(transactions):
        for event in range(events):
            stream.insert(id=str(number * events + event), note=f"n{number * events + event}")
        stream.commit()
    return stream


def _write(output: HttpOutput, transactions: list[Transaction]) -> None:
    output.write(transactions, transactions[-1].checkpoint)


def test_idempotency_keys_of_partitions_differ(service: Service) -> None:
    """A control entry, or a truncate, has the same position in every partition of a group."""
    stream = _stream(0)
    stream.control(ControlKind.GAP)
    output = _output(service)
    for number in (None, 0, 1):
        (transaction,) = stream.transactions
        transaction.partition = number
        _write(output, [transaction])
    keys = [headers["Idempotency-Key"].partition(":") for headers, _ in service.requests]
    assert [key[0] for key in keys] == ["shop", "shop/0", "shop/1"]
    assert len({key[2] for key in keys}) == 1


def test_requests_hold_whole_transactions_in_order(service: Service) -> None:
    """Up to five events a request: two transactions of two; one of twelve is divided."""
    stream = _stream(3)
    stream.control(ControlKind.GAP)
    for key in range(12):
        stream.insert(id=str(100 + key))
    stream.commit()
    _write(_output(service, batch=5, headers={"X-Team": "a"}), stream.transactions)
    assert [len(records) for _, records in service.requests] == [4, 3, 5, 5, 2]
    expected = [str(e.position) for t in stream.transactions for e in (*t.events, t.control) if e]
    assert service.positions == expected
    headers = service.requests[0][0]
    assert headers["Idempotency-Key"] == f"shop:{expected[0]}-{expected[3]}"
    assert (headers["X-Team"], headers["Authorization"]) == ("a", "Bearer hunter2")
    assert headers["Content-Type"] == "application/x-ndjson"
    assert "other" not in str(headers)


def test_busy_service_gets_same_request_again(service: Service) -> None:
    service.answers = [(503, {}), (429, {"Retry-After": "0"}), (500, {})]
    stream = _stream(1)
    _write(_output(service), stream.transactions)
    assert len(service.requests) == 1 and len(service.positions) == 2


def test_service_that_stays_down_is_retryable(service: Service) -> None:
    service.answers = [(503, {})] * 20
    with pytest.raises(OutputUnavailable, match="status 503"):
        _write(_output(service), _stream(1).transactions)
    with pytest.raises(OutputUnavailable, match=r"service at 127\.0\.0\.1:1: connection refused") as caught:
        _write(_output(service, url="http://127.0.0.1:1/"), _stream(1).transactions)
    assert caught.value.next_step == "check that the server is up and reachable at outputs.hook.url, then run again"
    with pytest.raises(ConsumeError, match=r"service at no\.such\.invalid:80: unknown host") as unknown:
        _write(_output(service, url="http://no.such.invalid/"), _stream(1).transactions)
    assert unknown.value.next_step == "correct outputs.hook.url"
    assert not unknown.value.retryable


def test_refused_event_is_named_and_others_sent_once(service: Service) -> None:
    service.poison = '"n5"'
    stream = _stream(5)
    output = _output(service)
    with pytest.raises(EventRejected, match="status 422") as caught:
        _write(output, stream.transactions)
    bad = stream.transactions[2].events[1]
    assert (caught.value.table, caught.value.position) == (bad.table, bad.position)
    stream.transactions[2].events = stream.transactions[2].events[:1]
    _write(output, stream.transactions)
    expected = [str(e.position) for t in stream.transactions for e in t.events]
    assert service.positions == expected


@pytest.mark.parametrize("status", [301, 401, 404])
def test_refused_request_stops_output(service: Service, status: int) -> None:
    service.answers = [(status, {"Location": "/other"})]
    with pytest.raises(ConsumeError, match=f"service at 127.0.0.1:[0-9]+: status {status}") as caught:
        _write(_output(service), _stream(1).transactions)
    assert not caught.value.retryable and not isinstance(caught.value, EventRejected)


def test_certificates_are_verified_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_PAUSE_SECONDS", 0.01)
    authority = create_authority(tmp_path, "ours")
    own = create_signed(tmp_path, "localhost", authority)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.certificate, own.key)
    for service in serve_requests(context):
        service.url = service.url.replace("127.0.0.1", "localhost")
        with pytest.raises(ConsumeError, match=r"service at localhost:\d+: the server's certificate cannot") as caught:
            _write(_output(service), _stream(1).transactions)
        assert caught.value.next_step == (
            "name its CA's file in outputs.hook.tls_ca, or set outputs.hook.tls to require"
        )
        other = service.url.replace("localhost", "127.0.0.1")
        with pytest.raises(ConsumeError, match="the server's certificate is for another host"):
            _write(_output(service, url=other, tls_ca=str(authority.certificate)), _stream(1).transactions)
        with pytest.raises(OutputUnavailable, match="the connection was lost"):
            _write(_output(service, url=service.url.replace("https", "http"), tls="disable"), _stream(1).transactions)
        _write(_output(service, tls_ca=str(authority.certificate)), _stream(1).transactions)
        _write(_output(service, tls="require"), _stream(1).transactions)
        assert len(service.requests) == 2


def test_service_without_tls_is_named(service: Service) -> None:
    """Nothing is sent to it: what answers to TLS is not TLS."""
    with pytest.raises(ConsumeError, match=r"service at 127\.0\.0\.1:\d+: the server does not speak TLS") as caught:
        _write(_output(service, url=service.url.replace("http", "https"), tls="verify"), _stream(1).transactions)
    assert "set outputs.hook.tls to disable" in caught.value.next_step
    assert not service.requests


@pytest.mark.parametrize(("url", "tls"), [("http://h/", "verify"), ("http://h/", "require"), ("https://h/", "disable")])
def test_plain_text_must_be_requested(url: str, tls: Tls) -> None:
    with pytest.raises(ConfigError, match=r"outputs\.hook\.url: https?://"):
        HttpOutput(OutputContext("hook", ("shop",), NativeFormat()), url=url, tls=tls)


def test_keys_of_bootstraps_and_controls_differ(service: Service) -> None:
    """A service that has seen the rows of one bootstrap must not take those of the next for repeats."""
    stream = Stream(ID)
    stream.insert(id="1")
    event = stream.commit()
    control = stream.control(ControlKind.SCHEMA)
    read = [replace(one, op="r", origin="state") for one in event.events]
    rows = [replace(event, events=read, bootstrap=name) for name in ("a1", "b2")]
    _write(_output(service, batch=1), [event, control, *rows])
    keys = [headers["Idempotency-Key"] for headers, _ in service.requests]
    assert len(set(keys)) == 4
    assert keys[2] == f"shop:a1:{event.position}-a1:{event.position}"


def _lapsing(after: int) -> Callable[[], None]:
    """Return a lease that runs out after so many questions."""
    asked = iter(range(after))

    def require() -> None:
        if next(asked, None) is None:
            raise ProgressUnavailable("the lease has run out")

    return require


def test_lease_is_asked_before_each_request(service: Service) -> None:
    """It runs out between two of five requests, and while a request is repeated."""
    context = OutputContext("hook", ("shop",), NativeFormat(), require_lease=_lapsing(2))
    output = HttpOutput(context, url=service.url, batch=2, tls="disable")
    output.open()
    with pytest.raises(ProgressUnavailable):
        _write(output, _stream(5).transactions)
    assert len(service.requests) == 2

    service.answers = [(503, {})] * 5
    context = OutputContext("hook", ("shop",), NativeFormat(), require_lease=_lapsing(1))
    output = HttpOutput(context, url=service.url, tls="disable")
    output.open()
    with pytest.raises(ProgressUnavailable):
        _write(output, _stream(1).transactions)
    assert len(service.answers) == 4


class _Repeated(Sequence[Event]):
    """Many events of a transaction that no list holds."""

    def __init__(self, event: Event, count: int) -> None:
        self._event, self._count = event, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return self._event

    def __iter__(self) -> Iterator[Event]:
        return (replace(self._event, position=Position(1, 100, number)) for number in range(self._count))


def test_memory_of_large_transaction_is_bounded(service: Service) -> None:
    """Nothing is kept for each of its rows: twice the rows take as much memory."""
    stream = _stream(1)
    (transaction,) = stream.transactions
    peaks = []
    for count in (2_000, 4_000):
        service.answers = [(200, {})] * 1000
        output = _output(service, batch=200)
        transaction.events = _Repeated(transaction.events[0], count)
        tracemalloc.start()
        _write(output, [transaction])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
