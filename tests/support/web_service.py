"""A web service for tests of the output ``http``: it records requests, and answers as the test sets."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Service:
    """A web service: ``answers`` are the status codes of its first requests, with headers; 200 after them."""

    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    poison: str = ""
    requests: list[tuple[dict[str, str], list[Any]]] = field(default_factory=list)

    def answer(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        """Record one request; return its status and headers."""
        if self.answers:
            return self.answers.pop(0)
        if self.poison and self.poison.encode() in body:
            return 422, {}
        self.requests.append((headers, [json.loads(line) for line in body.splitlines()]))
        return 200, {}

    @property
    def positions(self) -> list[str]:
        """The positions of all acknowledged records."""
        return [record["position"] for _, records in self.requests for record in records]


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers = service.answer(dict(self.headers), body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    return Handler


def serve_requests(tls: ssl.SSLContext | None = None) -> Iterator[Service]:
    """Serve requests while the generator is suspended, with TLS if there is a context."""
    service = Service()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    service.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}/events"
    # A test that fails inside a loop over this generator never resumes it, and the process must end nevertheless.
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield service
    server.shutdown()
    thread.join()
    server.server_close()
