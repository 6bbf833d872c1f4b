"""A primary with replicas by GTID, MySQL or MariaDB, and the promotion of one of them.

Replicas follow asynchronously and log what they apply. ``promote`` moves all other replicas to the promoted server;
``stop`` and ``kill`` of a server are its own methods.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.mysql import Flavour, MysqlServer

OPTIONS = {"mariadb": ["--log-slave-updates=ON"], "mysql": ["--replica-preserve-commit-order=ON"]}
_STOP = {"mariadb": "STOP SLAVE", "mysql": "STOP REPLICA"}
_RESET = {"mariadb": "RESET SLAVE ALL", "mysql": "RESET REPLICA ALL"}
_START = {"mariadb": "START SLAVE", "mysql": "START REPLICA"}
_EXECUTED = {"mariadb": "SELECT @@GLOBAL.gtid_binlog_pos", "mysql": "SELECT @@GLOBAL.gtid_executed"}
_EMPTY_LOG = {
    "mariadb": ["RESET MASTER", "SET GLOBAL gtid_slave_pos = ''", "SET GLOBAL gtid_strict_mode = ON"],
    "mysql": ["RESET BINARY LOGS AND GTIDS"],
}
_WAIT_SECONDS = 60


class Cluster:
    """Servers that replicate from ``primary``; ``replicas`` are the others that still run."""

    def __init__(self, servers: Sequence[MysqlServer]) -> None:
        self.primary, *replicas = servers
        self.replicas = replicas
        for replica in replicas:
            self.follow(replica)

    def follow(self, replica: MysqlServer) -> None:
        """Let a server replicate from the primary, from where it is."""
        run(replica, _STOP, ignore=True)
        port = self.primary.port
        if replica.flavour == "mariadb":
            replica.run(
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='root',"
                " MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
            )
        else:
            replica.run(
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, SOURCE_USER='root',"
                " SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1",
            )
        run(replica, _START)

    def pause(self, replica: MysqlServer) -> None:
        """Let a replica receive nothing more."""
        run(replica, _STOP)

    def wait(self, *replicas: MysqlServer) -> None:
        """Wait until replicas, by default all, have what the primary has now."""
        end = executed(self.primary)
        deadline = time.monotonic() + _WAIT_SECONDS
        for replica in replicas or self.replicas:
            while executed(replica) != end:
                assert time.monotonic() < deadline, f"{executed(replica)} is not {end}: {replication_state(replica)}"
                time.sleep(0.05)

    def wait_for(self, server: MysqlServer, query: str) -> None:
        """Wait until a query on a server has a row."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not server.rows(query):
            assert time.monotonic() < deadline, replication_state(server)
            time.sleep(0.05)

    def reset(self) -> None:
        """Empty all servers and their logs, and let all others follow the first again."""
        for server in (self.primary, *self.replicas):
            run(server, _STOP, ignore=True)
            run(server, _RESET, ignore=True)
            server.run("SET GLOBAL read_only = OFF")
            server.empty()
            server.run(*_EMPTY_LOG[server.flavour])
        for replica in self.replicas:
            self.follow(replica)

    def promote(self, replica: MysqlServer) -> None:
        """Make a replica the primary of all others; the old primary is left as it is."""
        run(replica, _STOP)
        run(replica, _RESET)
        self.replicas.remove(replica)
        self.primary = replica
        for other in self.replicas:
            self.follow(other)


def run(server: MysqlServer, statements: dict[str, str], *, ignore: bool = False) -> None:
    """Run the flavour's statement; with ``ignore`` only on a server that has been set up as a replica before."""
    if not ignore or replication_state(server):
        server.run(statements[server.flavour])


def executed(server: MysqlServer) -> str:
    """Return the GTIDs that a server has executed."""
    return "".join(str(server.rows(_EXECUTED[server.flavour])[0][0]).split())


def replication_state(server: MysqlServer) -> list[tuple[object, ...]]:
    """Return the state of a server's replication; empty if it is no replica."""
    return list(server.rows("SHOW SLAVE STATUS" if server.flavour == "mariadb" else "SHOW REPLICA STATUS"))


@contextmanager
def cluster_of(flavour: Flavour, folder: Path, size: int = 3) -> Iterator[Cluster]:
    """Run a primary and replicas in the block."""
    servers = [
        MysqlServer(flavour, folder / f"server{number}", f"--server-id={10 + number}", *OPTIONS[flavour])
        for number in range(size)
    ]
    first, *others = servers
    first.create_data()
    for other in others:
        subprocess.run(["cp", "-a", first.data, other.data], check=True)
        (other.data / "auto.cnf").unlink(missing_ok=True)
    with ExitStack() as stack:
        yield Cluster([stack.enter_context(server) for server in servers])
