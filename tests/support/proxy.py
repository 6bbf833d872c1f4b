"""A TCP proxy between a client and a server on this machine. It can stall: nothing goes through, nothing is closed."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards to ``port`` from a port of its own."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []

    def stall(self) -> None:
        """From now on what is sent stays here."""
        self._flowing.clear()

    def flow(self) -> None:
        """What stayed here goes on, and all that follows."""
        self._flowing.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flowing.set()
        for connection in (self._listener, *self._connections):
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self._flowing.wait()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._connections += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                target.sendall(data)
        except OSError:
            pass
        finally:
            self._flowing.wait()
            for end in (source, target):
                end.close()
