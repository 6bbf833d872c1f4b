"""A TCP proxy between a client and a server on this machine.

It can stall (nothing is forwarded, no connection is closed) and cut all connections, also in the middle of a response.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards a free port to ``port``."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._counting = threading.Lock()
        self._cuts: list[int] = []

    def stall(self) -> None:
        """Hold back all data from now on."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward the held data and all that follows."""
        self._flowing.set()

    def cut(self) -> None:
        """Close all current connections; new ones are forwarded."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def redirect(self, port: int) -> None:
        """Forward new connections to another port, as a failover behind one address does."""
        self._target = port

    def cut_after(self, *sizes: int) -> None:
        """Cut after ``sizes[0]`` more bytes from the server, then after ``sizes[1]`` further bytes, and so on."""
        with self._counting:
            self._cuts = list(sizes)

    @property
    def pending_cuts(self) -> int:
        """The number of requested cuts that have not happened yet."""
        return len(self._cuts)

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
            except OSError:
                return
            self._flowing.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._connections += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, target, source is far), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                allowed = self._count(len(data)) if from_server else len(data)
                target.sendall(data[:allowed])
                if allowed < len(data):
                    self.cut()
        except OSError:
            pass
        finally:
            self._flowing.wait()
            for end in (source, target):
                # The other direction blocks in recv() and would keep the connection open.
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _count(self, size: int) -> int:
        """Return how many bytes of a response to forward before the next cut."""
        with self._counting:
            if not self._cuts or size <= self._cuts[0]:
                self._cuts[:1] = [rest - size for rest in self._cuts[:1]]
                return size
            return self._cuts.pop(0)
