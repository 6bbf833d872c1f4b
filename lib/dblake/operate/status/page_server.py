"""Serve pages that a job makes again and again over HTTP: metrics for Prometheus, the report for a browser.

Place: behind ``status`` and ``report``, which publish. Guarantee: only what was published is read, by GET and HEAD; a
request starts no work, so many requests cost the job and the database nothing. There is no authentication: the address
is the loopback one unless ``status.listen`` names another.
"""

from __future__ import annotations

import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from dblake.base.core.errors import UsageError

READING_SECONDS = 15.0
"""Between two readings for metrics and alerts: Prometheus scrapes as often, and a problem is announced, with a call's
time-out, within half a minute."""


class PageServer:
    """Serves the newest version of each published page. A context manager; ``port`` 0 takes a free one."""

    def __init__(self, host: str, port: int) -> None:
        self._pages: dict[str, tuple[str, bytes]] = {}
        handler = type("PageHandler", (_PageHandler,), {"pages": self._pages})
        try:
            self._server = (_ServerOfIPv6 if ":" in host else ThreadingHTTPServer)((host, port), handler)
        except OSError as error:
            raise UsageError(
                f"port {port} of {host} cannot be opened: {error.strerror}",
                next_step="choose a free port, and an address of this machine as status.listen",
            ) from error
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        """Return the port that is open."""
        return int(self._server.server_address[1])

    def publish(self, path: str, content_type: str, body: bytes) -> None:
        """Serve a page at a path from now on."""
        self._pages[path] = (content_type, body)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="pages", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _ServerOfIPv6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _PageHandler(BaseHTTPRequestHandler):
    pages: dict[str, tuple[str, bytes]]
    timeout = 10
    server_version, sys_version = "dblake", ""

    def do_GET(self) -> None:
        """Send a page, or the reason that there is none."""
        page = self.pages.get(self.path.partition("?")[0])
        if page is None:
            # Before the first reading the page is on its way.
            status = HTTPStatus.NOT_FOUND if self.pages else HTTPStatus.SERVICE_UNAVAILABLE
            page = ("text/plain; charset=utf-8", f"{status.phrase}\n".encode())
        else:
            status = HTTPStatus.OK
        content_type, body = page
        self.send_response(status)
        for name, value in (
            ("Content-Type", content_type), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: a request is no event of the job."""
