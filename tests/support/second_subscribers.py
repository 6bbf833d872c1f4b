"""The fault "a second process of an output": several ``subscribe`` of one output at once, killed at random.

In each round processes of one output start at almost the same time while rows change; one has the checkpoint, and the
others must end with 75. Then all are killed. At the end a last run catches up, and the caller compares the target with
the events.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.consumers import TABLES, Shop, folded_shop
from tests.support.kafka import KafkaServer
from tests.support.killed_subscriber import KilledSubscriber
from tests.support.postgres import fresh_database
from tests.support.sql_delivery import SCHEMA
from tests.support.sql_places import Place, postgres_place
from tests.support.web_service import Service, serve_requests

Kind = Literal["jsonl", "http", "sql", "kafka"]
KINDS: tuple[Kind, ...] = ("jsonl", "http", "sql", "kafka")
PASSWORD = "TARGET_PASSWORD"
"""The environment variable with the password of the target database."""
_PROCESSES = 3
_MOST_SECONDS = 6.0

Entry = tuple[str, str, str]
"""A source position, a table and a key."""


def stress_outputs(folder: Path, rounds: int, seed: int) -> dict[Kind, Counter[str]]:
    """Contend for each kind of output on servers of its own; return the counts of ``contend`` by kind."""
    with (
        EmbeddedPostgres(folder / "server") as server, fresh_database(server) as database,
        KafkaServer(folder / "broker") as kafka,
    ):
        os.environ[PASSWORD] = server.password
        for service in serve_requests():
            targets = Targets(service, postgres_place(database), kafka)
            return {kind: contend(kind, folder / kind, targets, rounds, seed) for kind in KINDS}
    raise AssertionError("the service serves once")


@dataclass(frozen=True)
class Targets:
    """The servers that outputs deliver to."""

    service: Service
    place: Place
    kafka: KafkaServer


def contend(kind: Kind, folder: Path, targets: Targets, rounds: int, seed: int) -> Counter[str]:
    """Run the rounds and a last run; return how many processes were rejected and killed.

    Raises AssertionError for a process that ended otherwise, and for a target that differs from the events.
    """
    folder.mkdir(exist_ok=True)
    shop, chosen, counts = folded_shop(folder, 3, later=30), random.Random(seed), Counter[str]()
    subscriber = KilledSubscriber(folder, kind, {"type": kind, **_settings(kind, targets)})
    for _ in range(rounds):
        running = [subscriber.start() for _ in range(_PROCESSES)]
        shop.move(chosen.randrange(1, 8))
        shop.land()
        shop.reconcile()
        counts += _end(running, chosen)
    subscriber.run()
    if kind == "sql":
        for table in TABLES:
            rows = targets.place.table("id, amount, note", table.replace(".", "_"))
            assert sorted(rows, key=str) == shop.rows(table), table
    elif kind == "http":
        sent = _entries(record for _, records in targets.service.requests for record in records)
        assert list(dict.fromkeys(sent)) == _expected(shop)
    elif kind == "kafka":
        require_records(targets.kafka, shop)
    else:
        lines = (folder / "all.jsonl").read_text(encoding="utf-8").splitlines()
        assert _entries(map(json.loads, lines)) == _expected(shop)
    return counts


def require_records(kafka: KafkaServer, shop: Shop) -> None:
    """Raise AssertionError unless each key's records, first ones counted, are its events in order."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    topics = [f"shop.{table}" for table in TABLES]
    records = [json.loads(value) for one in kafka.read(*topics) if (value := one.value()) is not None]
    for position, table, key in _entries(records):
        found[table, key].append(position)
    expected: dict[tuple[str, str], list[str]] = defaultdict(list)
    for position, table, key in _expected(shop):
        expected[table, key].append(position)
    assert {of: list(dict.fromkeys(positions)) for of, positions in found.items()} == expected


def _settings(kind: Kind, targets: Targets) -> dict[str, Any]:
    if kind == "jsonl":
        return {"path": "./all.jsonl"}
    if kind == "http":
        return {"url": targets.service.url, "tls": "disable", "batch": 10}
    if kind == "kafka":
        return {"brokers": targets.kafka.brokers, "tls": "disable"}
    return {"url": targets.place.url, "schema": SCHEMA, "table": "{schema}_{table}", "tls": "disable",
            "password": f"${{env:{PASSWORD}}}"}


def _end(running: list[subprocess.Popen[str]], chosen: random.Random) -> Counter[str]:
    """Wait for those that are rejected, kill what is left after a random time, and count both."""
    counts = Counter[str]()
    seconds = 1.0 + chosen.random() * _MOST_SECONDS
    for process in running:
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            counts["killed"] += 1
            continue
        assert process.returncode == 75 and "another process" in errors, (process.returncode, errors)
        counts["rejected"] += 1
    return counts


def _expected(shop: Shop) -> list[Entry]:
    """Return all events from the bootstrap on, in order."""
    with shop.subscribe() as subscription:
        events = [event for one in subscription for event in one.events]
    return [(str(event.position), event.table, json.dumps(event.key)) for event in events]


def _entries(records: Iterable[dict[str, Any]]) -> list[Entry]:
    """Return the events among native JSON records, in order."""
    return [
        (one["position"], one["table"], json.dumps({name: str(value) for name, value in one["key"].items()}))
        for one in records if "op" in one
    ]
