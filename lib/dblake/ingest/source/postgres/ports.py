"""Free ports on this machine for servers that dblake starts itself: the quickstart's, the trials' and the tests'.

Guarantee: no outgoing connection is assigned the same port. The kernel takes those from a range of its own; a client
that retries against a stopped server could otherwise be assigned that server's port, connect to itself and block the
restart. The caller has to bind the port soon.
"""

from __future__ import annotations

import random
import socket

from dblake.base.core.errors import DblakeError

# Below the ranges of outgoing connections: Linux begins at 32768, IANA and others at 49152.
_PORTS = range(16384, 32768)
_MAX_TRIES = 100


def free_port() -> int:
    """Return a port of 127.0.0.1 without a listener. Draws at random, because other processes draw at the same time."""
    for port in random.sample(_PORTS, _MAX_TRIES):
        with socket.socket() as probe:
            # As servers do: connections in TIME_WAIT do not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DblakeError(
        f"none of {_MAX_TRIES} ports between {_PORTS.start} and {_PORTS.stop - 1} is free",
        next_step="list the listeners with ss -ltn and stop those that are not needed",
    )
