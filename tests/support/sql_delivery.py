"""Deliver a fixed history to an SQL target: ``python -m tests.support.sql_delivery URL PASSWORD``, which tests kill."""

from __future__ import annotations

import random
import sys
from typing import Any

from dblake.outputs.protocol import OutputContext
from dblake.outputs.sql.output import SqlOutput
from tests.support.streams import Stream, batches, random_stream

SCHEMA = "copy"


def sql_output(url: str, password: str, **settings: Any) -> SqlOutput:
    """Return the output ``copy`` into a schema of that name."""
    context = OutputContext("copy", ("shop",), format=None, secrets={"password": password})  # type: ignore[arg-type]
    return SqlOutput(context, **{"url": url, "schema": SCHEMA, "tls": "disable", **settings})


def history() -> Stream:
    """Return the history that every process delivers."""
    return random_stream(11, 40)


def expected_rows(stream: Stream) -> list[tuple[Any, ...]]:
    """Return the rows that a random history leaves in a target, by key."""
    names = stream.schema.names
    rows = [
        (int(row["id"] or 0), row["qty"] and int(row["qty"]), *(row[name] for name in names[2:]))
        for row in stream.rows.values()
    ]
    return sorted(rows, key=lambda row: row[0])


def deliver(url: str, password: str) -> None:
    """Deliver the history from the target's checkpoint on."""
    transactions = history().transactions
    output = sql_output(url, password)
    checkpoint = output.open()
    first = next((number + 1 for number, t in enumerate(transactions) if t.checkpoint == checkpoint), 0)
    for part in batches(transactions[first:], random.Random(3)):
        output.write(part, part[-1].checkpoint)
    output.close()


if __name__ == "__main__":
    deliver(*sys.argv[1:])
