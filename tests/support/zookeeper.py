"""ZooKeeper for tests: one real server per session, one znode folder per test.

``zookeeper`` is the server, ``zookeeper_url`` the URL of a fresh folder in it. A test that stops the server or ends
sessions starts its own ``ZookeeperServer``. Ticks are short, so that a session can be as short as a second. ``debian``
fetches the server.
"""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from kazoo.client import KazooClient

from dblake.ingest.source.postgres.ports import free_port
from tests.support import debian
from tests.support.java import find_java
from tests.support.report import note_version

# All jars, but only one logging backend: ZooKeeper accepts no second one.
_JAR = re.compile(r"(?!slf4j-|jcl-|jul-|log4j-).*|slf4j-(api|simple)")
_numbers = itertools.count(1)


class ZookeeperServer:
    """A standalone server. ``settings`` are lines of its zoo.cfg; ``longest`` is the longest session in seconds."""

    longest = 10.0

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._tls = "secureClientPort" in settings
        folder.mkdir(parents=True, exist_ok=True)
        lines = {
            "tickTime": "500", "maxSessionTimeout": f"{self.longest * 1000:.0f}", "dataDir": str(folder / "data"),
            "clientPort": str(self.port), "clientPortAddress": "127.0.0.1", "admin.enableServer": "false",
            "maxClientCnxns": "0", "4lw.commands.whitelist": "ruok", **settings,
        }
        (folder / "zoo.cfg").write_text("".join(f"{k}={v}\n" for k, v in lines.items()), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server; return when it responds. Raises AssertionError after 20 seconds."""
        files = (debian.tree("zookeeper") / "usr/share/java").glob("*.jar")
        # Each jar also has a link with its version.
        jars = [str(jar) for jar in files if not jar.is_symlink() and _JAR.fullmatch(jar.stem)]
        factory = "NettyServerCnxnFactory" if self._tls else "NIOServerCnxnFactory"
        command = [
            find_java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.{factory}",
            "-Dzookeeper.forceSync=no", "-cp", ":".join(jars),
            "org.apache.zookeeper.server.ZooKeeperServerMain", str(self._folder / "zoo.cfg"),
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self._is_serving():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError((self._folder / "log").read_text(encoding="utf-8")[-2000:])
            time.sleep(0.05)
        note_version("ZooKeeper", debian.version("zookeeper"))

    def _is_serving(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False

    def stop(self) -> None:
        """Kill the server, as a power failure would."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, **arguments: Any) -> Any:
        """Return a connected client; the test stops it."""
        client = KazooClient(hosts=self.hosts, **arguments)
        client.start(timeout=20)
        return client

    def end_session(self, client: Any) -> None:
        """Expire a client's session without its knowledge: another connection takes the session over and closes it."""
        twin = self.client(client_id=client.client_id)
        twin.stop()
        twin.close()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """Return the session's server."""
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_url(zookeeper: ZookeeperServer) -> str:
    """Return a ``progress`` URL with a folder of its own."""
    return f"zookeeper://{zookeeper.hosts}/test-{next(_numbers)}?session_timeout=4"
