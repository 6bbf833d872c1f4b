"""A Kafka broker for tests: one real broker in KRaft mode per session, topics of any name created on first use.

``kafka`` is the broker. A test that restarts its broker starts its own ``KafkaServer``. ``ivy`` fetches the jars, once,
as ``python -m tests.support.kafka`` does. Raises ``debian.Unavailable`` if they cannot be fetched.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Message

from dblake.ingest.source.postgres.ports import free_port
from tests.support.certificates import Certificate
from tests.support.debian import Unavailable
from tests.support.ivy import fetched_jars
from tests.support.java import find_java
from tests.support.report import note_version

VERSION = "4.1.0"
_PACKAGES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_START_SECONDS = 90
_STOP_SECONDS = 30


class KafkaServer:
    """A broker that is its own controller. ``settings`` are further lines of server.properties. A context manager."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._settings = settings
        self._listeners = {"PLAINTEXT": self.port}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add_listener(self, protocol: str, certificate: Certificate, **settings: str) -> str:
        """Add a listener ``SSL`` or ``SASL_SSL``, with its settings, before the start; return its address."""
        port = self._listeners[protocol] = free_port()
        keystore = self._folder.parent / f"{protocol}.pem"
        keystore.write_text(certificate.key.read_text("utf-8") + certificate.certificate.read_text("utf-8"), "utf-8")
        own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore), **settings}
        self._settings |= {f"listener.name.{protocol.lower()}.{key}": value for key, value in own.items()}
        return f"localhost:{port}"

    def start(self) -> None:
        """Start the broker; return when it accepts connections."""
        properties = self._folder / "server.properties"
        if not properties.exists():
            self._format(properties)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *_java_command(), "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_serving():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(crash=True)
                raise RuntimeError((self._folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)
        note_version("Kafka", VERSION)

    def stop(self, *, crash: bool = False) -> None:
        """Stop the broker; ``crash`` kills it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if crash:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def read(self, *topics: str) -> list[Message]:
        """Return all records of topics, each partition in order."""
        consumer = Consumer({
            "bootstrap.servers": self.brokers, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest",
            "enable.partition.eof": True, "enable.auto.commit": False,
        })
        records, ends = [], set[tuple[Any, Any]]()
        wanted = {
            (topic, number) for topic in topics
            for number in consumer.list_topics(topic, timeout=15).topics[topic].partitions
        }
        consumer.subscribe(list(topics))
        deadline = time.monotonic() + 60
        try:
            while ends < wanted:
                assert time.monotonic() < deadline, "the broker did not send all records in a minute"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error() is None:
                    records.append(message)
                else:
                    ends.add((message.topic(), message.partition()))
        finally:
            consumer.close()
        return records

    def _format(self, properties: Path) -> None:
        controller = free_port()
        self._folder.mkdir(parents=True, exist_ok=True)
        lines = {
            "process.roles": "broker,controller", "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": ",".join(
                f"{name}://127.0.0.1:{port}" for name, port in {**self._listeners, "CONTROLLER": controller}.items()
            ),
            "advertised.listeners": ",".join(
                f"{name}://{'127.0.0.1' if name == 'PLAINTEXT' else 'localhost'}:{port}"
                for name, port in self._listeners.items()
            ),
            "controller.listener.names": "CONTROLLER", "log.dirs": str(self._folder / "data"),
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in self._listeners)]
            ),
            "num.partitions": "3", "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0", "num.network.threads": "1", "num.io.threads": "2",
            "background.threads": "2", "log.cleaner.enable": "false", **self._settings,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")
        # An identifier that began with a hyphen would be an option to the tool.
        cluster = urlsafe_b64encode(b"d" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        subprocess.run(
            [*_java_command(), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)],
            check=True, capture_output=True, timeout=_START_SECONDS, cwd=self._folder,
        )

    def _is_serving(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def _java_command() -> list[str]:
    return [
        find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars()}/*",
    ]


def jars() -> Path:
    """Return the folder of Kafka's jars; fetch them first if they are missing."""
    return fetched_jars(f"kafka-{VERSION}", _PACKAGES)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Return the session's broker."""
    with KafkaServer(tmp_path_factory.mktemp("kafka") / "broker") as server:
        yield server


if __name__ == "__main__":
    try:
        jars()
    except Unavailable as failure:
        print(f"dblake: {failure}", file=sys.stderr)
        sys.exit(75)
