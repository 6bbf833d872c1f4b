"""A PostgreSQL database with its lake, for the examples: events and state follow it without a JVM."""

from __future__ import annotations

import re
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from dblake.serve.consume.filters import Selection
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs.delivery import Delivery, DeliverySettings
from dblake.serve.outputs.protocol import Output, OutputContext
from dblake.serve.outputs.registry import make_output
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
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
