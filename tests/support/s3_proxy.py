"""An HTTP proxy before an S3 server: counts requests, delays them, and makes some fail in the ways that stores do.

It is a process of its own: some calls of delta-rs hold Python's lock while they wait for the store.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from dblake.base.core.processes import end_with_parent, stop_process
from tests.support.certificates import Certificate

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})
_CONTROL = "/.control"


class Fault(StrEnum):
    """What happens to a request."""

    LOST_ANSWER = "lost"
    """The store acts, and the connection ends without an answer."""
    FAILED_ANSWER = "failed"
    """The store acts, and then answers 500."""
    SLOW_DOWN = "slow"
    """The store rejects the request with 503: repeat it more slowly."""
    RESET = "reset"
    """The connection is reset before the store acts."""
    HELD = "held"
    """The request waits for ``release``; then the connection is reset before the store acts."""
    LATE = "late"
    """The request waits for ``release``, and reaches the store then."""
    EXPIRED = "expired"
    """The store rejects the request: the credentials have expired."""
    DENIED = "denied"
    """The store rejects the request: the credentials do not permit it."""
    IGNORED_CONDITION = "ignored"
    """The store ignores If-None-Match."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests whose method and path match fail: each, or each ``every``-th, at most ``times``."""

    fault: Fault
    request: str = ""
    every: int = 1
    times: int = 1 << 30


#: A request that commits to a Delta table.
COMMIT = r"PUT .*/_delta_log/\d{20}\.json$"

_ANSWERS = {
    Fault.SLOW_DOWN: (503, "SlowDown"), Fault.EXPIRED: (400, "ExpiredToken"), Fault.DENIED: (403, "AccessDenied"),
}


class S3Proxy:
    """Forwards a free port to the server at ``port``."""

    def __init__(self, port: int, certificate: Certificate | None = None) -> None:
        """With a certificate the proxy serves TLS, and only that."""
        self._target, self._certificate = port, certificate

    def set(self, *rules: Rule, latency_seconds: float = 0.0) -> None:
        """Replace all rules, of which the first that matches decides, and the time added to each request."""
        self._ask("PUT", {"rules": [asdict(rule) for rule in rules], "latency_seconds": latency_seconds})

    def release(self) -> None:
        """Release held requests, and hold no others."""
        self._ask("POST", {})

    def take(self) -> list[str]:
        """Return method and path of all requests since the last call."""
        return [str(request) for request in self._ask("GET", {})["requests"]]

    def fault_counts(self) -> dict[str, int]:
        """Return how many requests failed, by fault, since the start."""
        return dict(self._ask("HEAD", {}))

    def _ask(self, action: str, content: dict[str, Any]) -> Any:
        # Of the certificate, the client under test is the judge.
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=30, context=ssl._create_unverified_context()  # noqa: S323
        ) if self._certificate else http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", f"{_CONTROL}/{action}", json.dumps(content))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [*end_with_parent(), sys.executable, "-m", "tests.support.s3_proxy", str(self._target),
             *([str(self._certificate.certificate), str(self._certificate.key)] if self._certificate else [])],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_process(self._process)


class _Decisions:
    """The rules, in the proxy's process."""

    def __init__(self) -> None:
        self.latency_seconds = 0.0
        self.released = threading.Event()
        self._rules: list[tuple[Rule, list[int]]] = []
        self._requests: list[str] = []
        self._faults: dict[str, int] = {}
        self._deciding = threading.Lock()

    def control(self, action: str, content: dict[str, Any]) -> Any:
        """Do the action of a method of ``S3Proxy``."""
        with self._deciding:
            if action == "PUT":
                rules = [Rule(**{**rule, "fault": Fault(rule["fault"])}) for rule in content["rules"]]
                self._rules = [(rule, [0, 0]) for rule in rules]
                self.latency_seconds = content["latency_seconds"]
                self.released.clear()
            elif action == "POST":
                self._rules = []
                self.released.set()
            elif action == "HEAD":
                return self._faults
            taken, self._requests = self._requests, []
            return {"requests": taken}

    def decide(self, request: str) -> Fault | None:
        """Note a request and return what is to happen to it."""
        with self._deciding:
            self._requests.append(request)
            for rule, counts in self._rules:
                if not re.search(rule.request, request):
                    continue
                counts[0] += 1
                if counts[0] % rule.every or counts[1] >= rule.times:
                    continue
                counts[1] += 1
                self._faults[rule.fault] = self._faults.get(rule.fault, 0) + 1
                return rule.fault
        return None


def _handler(decisions: _Decisions, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def _forward(self) -> None:
            body = self._body()
            if self.path.startswith(_CONTROL):
                content = decisions.control(self.path.rpartition("/")[2], json.loads(body or b"{}"))
                self._answer(200, [], json.dumps(content).encode())
                return
            time.sleep(decisions.latency_seconds)
            fault = decisions.decide(f"{self.command} {self.path}")
            if fault in _ANSWERS:
                self._answer(*_error(*_ANSWERS[fault]))
                return
            if fault in (Fault.HELD, Fault.LATE):
                decisions.released.wait()
            if fault in (Fault.RESET, Fault.HELD):
                self._reset()
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            if fault is Fault.IGNORED_CONDITION:
                headers.pop(next((name for name in headers if name.lower() == "if-none-match"), ""), None)
            store = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                store.request(self.command, self.path, body, headers)
                answer = store.getresponse()
                content = answer.read()
            finally:
                store.close()
            if fault is Fault.LOST_ANSWER:
                self._reset()
            elif fault is Fault.FAILED_ANSWER:
                self._answer(*_error(500, "InternalError"))
            else:
                self._answer(answer.status, answer.getheaders(), content)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _forward

        def _body(self) -> bytes | None:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.close_connection = False
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            length = int(self.headers.get("Content-Length") or 0)
            return self.rfile.read(length) if length else None

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _HOP_BY_HOP and (name.lower() != "content-length" or self.command == "HEAD"):
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(content)))
            with suppress(OSError):
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        def _reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # The file objects keep the socket open.
            self.wfile.close()
            self.rfile.close()
            self.connection.close()

        def handle_one_request(self) -> None:
            with suppress(OSError, ValueError):
                super().handle_one_request()

        def finish(self) -> None:
            with suppress(OSError, ValueError):
                super().finish()

    return Handler


def _error(status: int, code: str) -> tuple[int, list[tuple[str, str]], bytes]:
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return status, [("Content-Type", "application/xml")], text.encode()


def serve(port: int, certificate: str = "", key: str = "") -> None:
    """Forward to a port until the process is stopped, with TLS if a certificate is given; print the own port."""
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(_Decisions(), port))
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), *sys.argv[2:])
