"""The output ``sql`` into the schema of the tests, and the rows that a random history leaves there."""

from __future__ import annotations

from typing import Any

from dblake.serve.outputs.protocol import OutputContext
from dblake.serve.outputs.sql.output import SqlOutput
from tests.support.streams import Stream

SCHEMA = "copy"


def sql_output(url: str, password: str, **settings: Any) -> SqlOutput:
    """Return the output ``copy`` into a schema of that name."""
    context = OutputContext("copy", ("shop",), format=None, secrets={"password": password})  # type: ignore[arg-type]
    return SqlOutput(context, **{"url": url, "schema": SCHEMA, "tls": "disable", **settings})


def expected_rows(stream: Stream) -> list[tuple[Any, ...]]:
    """Return the rows that a random history leaves in a target, by key."""
    names = stream.schema.names
    rows = [
        (int(row["id"] or 0), row["qty"] and int(row["qty"]), *(row[name] for name in names[2:]))
        for row in stream.rows.values()
    ]
    return sorted(rows, key=lambda row: row[0])
