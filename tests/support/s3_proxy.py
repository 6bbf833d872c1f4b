"""An HTTP proxy before an S3 server: counts requests, delays them, and makes some fail in the ways that stores do."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})


class Fault(Enum):
    """What happens to a request."""

    LOST_ANSWER = "the store acts, and the connection ends without an answer"
    FAILED_ANSWER = "500: the store acts, and then answers that it failed"
    SLOW_DOWN = "503: the store rejects the request, which is to be repeated more slowly"
    RESET = "the connection is reset before the store acts"
    EXPIRED = "400: the session's credentials have expired"
    DENIED = "403: the credentials do not permit this"
    IGNORED_CONDITION = "the store ignores If-None-Match"


_ANSWERS = {
    Fault.SLOW_DOWN: (503, "SlowDown"), Fault.EXPIRED: (400, "ExpiredToken"), Fault.DENIED: (403, "AccessDenied"),
}

#: Returns what is to happen to a request: its method, its path with the query, and its number from 1.
Rule = Callable[[str, str, int], Fault | None]


class S3Proxy:
    """Forwards a free port to the server at ``port``; ``rule`` may be replaced at any time."""

    def __init__(self, port: int, *, rule: Rule = lambda *_: None, latency_seconds: float = 0.0) -> None:
        self.rule, self.latency_seconds = rule, latency_seconds
        self.faults: Counter[Fault] = Counter()
        self.requests: list[tuple[str, str]] = []
        self._counting = threading.Lock()
        self._total = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, port))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def take(self) -> list[tuple[str, str]]:
        """Return method and path of all requests since the last call."""
        with self._counting:
            taken, self.requests = self.requests, []
        return taken

    def decide(self, method: str, path: str) -> Fault | None:
        """Note a request and return what is to happen to it."""
        with self._counting:
            self.requests.append((method, path))
            self._total += 1
            fault = self.rule(method, path, self._total)
            if fault:
                self.faults[fault] += 1
        return fault

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(proxy: S3Proxy, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def _forward(self) -> None:
            body = self._body()
            if proxy.latency_seconds:
                time.sleep(proxy.latency_seconds)
            fault = proxy.decide(self.command, self.path)
            if fault in _ANSWERS:
                self._answer(*_error(*_ANSWERS[fault]))
                return
            if fault is Fault.RESET:
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
