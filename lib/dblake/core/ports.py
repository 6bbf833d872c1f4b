"""A port for a server that somebody starts on this machine: beside the path, for quickstart, trials and tests.

Promise: nobody's outgoing connection is given the same number meanwhile. The kernel gives those numbers of a range of
its own, and a client that keeps asking a server that is down can be given the server's, be connected to itself, and
so keep it from coming back. What this leaves to others is to use the port soon.
"""

from __future__ import annotations

import random
import socket

from dblake.core.errors import DblakeError

# Below the ranges of outgoing connections: Linux begins at 32768, IANA and others at 49152.
_PORTS = range(16384, 32768)
_TRIES = 100


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, drawn at random, as others draw at the same time."""
    for port in random.sample(_PORTS, _TRIES):
        with socket.socket() as probe:
            # As servers do: what waits for its time-out after a connection is not in the way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DblakeError(
        f"none of {_TRIES} ports between {_PORTS.start} and {_PORTS.stop - 1} is free",
        next_step="look at what listens on them: ss -ltn",
    )
