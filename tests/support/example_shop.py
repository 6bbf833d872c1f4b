"""A PostgreSQL database with its lake, for the examples: events and state follow it without a JVM.

``KilledSubscriber`` runs the job ``subscribe`` and kills it at random moments.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from dblake.consume.filters import Selection
from dblake.consume.subscription import Subscription, SubscriptionSettings
from dblake.outputs.delivery import Delivery, DeliverySettings
from dblake.outputs.protocol import Output, OutputContext
from dblake.outputs.registry import make_output
from dblake.reconcile.stream import reconcile_once
from dblake.state.run import run_state
from tests.support.backends import PostgresBackend
from tests.support.consumers import LOCAL_SESSION
from tests.support.lake import CaptureLake
from tests.support.postgres import Database

HOME = Path(__file__).parents[2]


def documented_output(name: str) -> dict[str, Any]:
    """Return the settings of an output as docs/outputs.md shows them."""
    page = (HOME / "docs" / "outputs.md").read_text(encoding="utf-8")
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        found = yaml.safe_load(block).get("outputs", {})
        if name in found:
            return dict(found[name])
    raise AssertionError(f"docs/outputs.md has no output {name}")


def run_documented_code(words: str, replaced: str, by: Path) -> None:
    """Execute the Python example of docs/outputs.md that has these words, with a path replaced."""
    page = (HOME / "docs" / "outputs.md").read_text(encoding="utf-8")
    (code,) = (one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if words in one)
    assert replaced in code
    exec(code.replace(replaced, str(by)), {})  # noqa: S102 - the page's own text


class ExampleShop:
    """A database with tables, and its lake in a folder."""

    def __init__(self, database: Database, folder: Path, *tables: str) -> None:
        self.database, self.folder = database, folder
        self.backend, self.lake = PostgresBackend(database), CaptureLake(folder, "shop")
        database.run(*tables)
        self.source = self.backend.source("public.*")

    def run(self, *statements: str) -> None:
        """Execute statements in one transaction."""
        connection = self.database.connect()
        connection.autocommit = False
        with closing(connection), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [tuple(row) for row in self.database.rows(query)]

    def dump(self, *tables: str) -> None:
        """Queue dumps of all rows by their keys: the end of a dump of a whole table would need Spark."""
        for table in tables:
            self.lake.dump(table, keys=[(str(key),) for (key,) in self.rows(f"SELECT id FROM {table}")])

    def advance(self) -> None:
        """Bring events and state up to the database."""
        self.lake.capture(self.source, redump=False)
        reconcile_once(_no_session, self.lake.paths)
        run_state(LOCAL_SESSION, self.lake.paths, parallel=2)

    def output(self, name: str, **settings: Any) -> tuple[Output, dict[str, Any]]:
        """Return a documented output with other ``settings``, and all of its configuration."""
        documented = documented_output(name)
        documented["settings"] = {**documented["settings"], **settings}
        context = OutputContext(name, ["shop"], None)  # type: ignore[arg-type]
        return make_output(documented["class"], context, documented["settings"]), documented

    def deliver(self, output: Output, documented: dict[str, Any], max_events: int = 7) -> None:
        """Deliver until caught up."""
        selection, start = Selection(documented["tables"]), documented.get("start", "bootstrap")

        def subscribe(held: str | None) -> Subscription:
            settings = SubscriptionSettings(selection, start, checkpoint=held, until_caught_up=True)
            return Subscription([self.lake.paths], settings)

        Delivery(output, subscribe, self.lake.paths, DeliverySettings("example", max_events), threading.Event()).run()

    def close(self) -> None:
        """Drop what the database's server keeps beside it."""
        self.backend.close()


def _no_session() -> Any:
    raise AssertionError("the examples need no Spark session")


class KilledSubscriber:
    """The job ``subscribe`` of one output, killed at random moments."""

    def __init__(self, shop: ExampleShop, name: str, documented: dict[str, Any], seed: int) -> None:
        self._random, self._name, self._conf = random.Random(seed), name, shop.folder / "shop.yaml"
        self.kills = 0
        self._conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "outputs": {name: documented | {"max_events": 3}},
            "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
                       "password": "${env:NONE}", "tables": ["public.*"]},
        }), encoding="utf-8")

    def run_and_kill(self, most_seconds: float) -> None:
        """Run it for a random time after its start-up."""
        process = self._start()
        try:
            process.wait(0.5 + self._random.random() * most_seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            self.kills += 1
        process.communicate()

    def run(self) -> None:
        """Run it until it is caught up."""
        process = self._start("--until-caught-up")
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors

    def _start(self, *options: str) -> subprocess.Popen[str]:
        command: Sequence[str] = (sys.executable, str(HOME / "jobs/subscribe.py"), "--conf", str(self._conf))
        return subprocess.Popen(
            [*command, "--output", self._name, *options], env=os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
