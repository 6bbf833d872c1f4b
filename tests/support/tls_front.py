"""A TLS front for a PostgreSQL server that was built without TLS: handles the SSLRequest, then forwards bytes.

A client that requests TLS gets it; other clients are forwarded as they are. ``encrypted`` counts the TLS connections.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.certificates import Certificate

_SSL_REQUEST = bytes.fromhex("0000000804d2162f")


class TlsFront:
    """Forwards a free port to ``port``."""

    def __init__(self, port: int, certificate: Certificate) -> None:
        self._target = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.certificate, certificate.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.encrypted = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError):
            first = near.recv(8, socket.MSG_WAITALL)
            if first == _SSL_REQUEST:
                near.sendall(b"S")
                near = self._context.wrap_socket(near, server_side=True)
                self.encrypted += 1
                first = b""
            with socket.create_connection(("127.0.0.1", self._target)) as far, near:
                far.sendall(first)
                responses = threading.Thread(target=_forward, args=(far, near), daemon=True)
                responses.start()
                _forward(near, far)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
