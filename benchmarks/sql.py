"""Measure ``sql``: whole processes, from start to printed answer, over tables of a million rows.

    python -m benchmarks.sql [--folder FOLDER] [--rows N] [--newer N]

It makes two tables of ``--rows`` rows in state and ``--newer`` events after it, without Spark and without a database,
and runs each query in a process of its own, several times; ``prompt`` types the first one at the prompt, and ends with
its answer.
"""

from __future__ import annotations

import argparse
import os
import pty
import resource
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.schema import TableSchema
from dblake.transform.events.files import EVENT_COLUMNS
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

HOME = Path(__file__).parents[1]
ORDERS = table_schema(
    "public.orders", "id bigint key", "customer bigint", "qty integer", "total numeric(10,2)",
    "at timestamp with time zone", "note text",
)
CUSTOMERS = table_schema("public.customers", "id bigint key", "name text", "region integer")
CONF = """
warehouse: ./warehouse
progress: file:./progress
source: {name: shop, type: postgres, host: 127.0.0.1, database: shop, user: dblake, password: "${env:PATH}",
         tables: ["public.*"]}
"""
QUERIES = {
    "count": "SELECT count(*) FROM orders",
    "point": "SELECT * FROM orders WHERE id = 4711",
    "join": "SELECT c.region, count(*), sum(o.total) FROM orders o JOIN customers c ON o.customer = c.id GROUP BY 1",
    "live": "SELECT count(*), sum(qty) FROM orders_live",
    "history": "SELECT count(*) FROM orders_history WHERE id < 1000",
    "events": "SELECT op, count(*) FROM dblake.events GROUP BY 1",
}
_ROUNDS = 3
_PROMPT_SECONDS = 60


def main() -> None:
    """Build the lake, unless the folder has one, and print seconds for each query."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--folder", type=Path, help="keep the lake there, and use it again")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--newer", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "conf.yaml").exists():
            build(folder, options.rows, options.newer)
        for name, statement in QUERIES.items():
            rounds = [run(folder, statement) for _ in range(_ROUNDS)]
            seconds, processor = (min(values) for values in zip(*rounds, strict=True))
            print(f"{name:8} {seconds:6.2f} s {processor:6.2f} CPU s")
        rounds = [ask_at_prompt(folder, QUERIES["count"]) for _ in range(_ROUNDS)]
        seconds, processor = (min(values) for values in zip(*rounds, strict=True))
        print(f"{'prompt':8} {seconds:6.2f} s {processor:6.2f} CPU s")


def run(folder: Path, statement: str) -> tuple[float, float]:
    """Run a query in a process; return its seconds, by the clock and of the processor."""
    began, used = time.monotonic(), _children_seconds()
    subprocess.run(
        [sys.executable, str(HOME / "jobs" / "sql.py"), "--conf", str(folder / "conf.yaml"), "--csv", statement],
        check=True, stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - began, _children_seconds() - used


def ask_at_prompt(folder: Path, statement: str) -> tuple[float, float]:
    """Start the prompt, type a statement as soon as it is there; return the seconds to the answer, and of the CPU."""
    began, used = time.monotonic(), _children_seconds()
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(HOME / "jobs" / "sql.py"), "--conf", str(folder / "conf.yaml")], stdin=terminal,
        stdout=terminal, stderr=terminal, start_new_session=True, env={**os.environ, "XDG_STATE_HOME": str(folder)},
    )
    os.close(terminal)
    _read_until(master, b"dblake> ")
    os.write(master, f"{statement};\n".encode())
    # The prompt returns with the answer.
    _read_until(master, b"dblake> ")
    seconds = time.monotonic() - began
    os.write(master, b"\x04")
    process.wait(_PROMPT_SECONDS)
    os.close(master)
    return seconds, _children_seconds() - used


def _read_until(terminal: int, text: bytes) -> None:
    found, end = b"", time.monotonic() + _PROMPT_SECONDS
    while text not in found:
        if not select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError(f"the prompt has not printed {text!r} within {_PROMPT_SECONDS} s")
        found += os.read(terminal, 1 << 16)


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def build(folder: Path, rows: int, newer: int) -> None:
    """Make the lake: rows in state, and newer events of a tenth of the customers' orders."""
    lake = PlainLake(folder / "warehouse")
    for schema in (ORDERS, CUSTOMERS):
        lake.schema(schema)
    ids = np.arange(rows)
    lake.append(pa.concat_tables([
        events(CUSTOMERS, "c", ids, 0, [_texts(ids), _texts(ids, "customer "), _texts(ids % 7)]),
        events(ORDERS, "c", ids, rows, _orders(ids)),
    ]), 1)
    lake.fold(1)
    changed = np.random.default_rng(1).choice(rows, newer, replace=False)
    lake.append(events(ORDERS, "u", changed, 2 * rows, _orders(changed)), 2)
    (folder / "conf.yaml").write_text(CONF)


def _orders(ids: np.ndarray) -> list[pa.Array]:
    return [
        _texts(ids), _texts(ids * 7919 % max(len(ids), 1)), _texts(ids % 10), _texts(ids % 1000, "", ".50"),
        pa.repeat("2026-01-01 12:00:00+00", len(ids)), _texts(ids, "a note of the order "),
    ]


def _texts(numbers: np.ndarray, before: str = "", after: str = "") -> pa.Array:
    return pc.binary_join_element_wise(before, pa.array(numbers).cast(pa.string()), after, "")


def events(schema: TableSchema, op: str, ids: np.ndarray, first: int, columns: list[pa.Array]) -> pa.Table:
    """Return one event per id at positions from ``first`` on; ``columns`` has the texts of the schema's columns."""
    count, width = len(ids), len(schema.columns)
    names = pa.array(list(schema.names)).take(pa.array(np.tile(np.arange(width), count)))
    values = pa.concat_arrays(columns).take(pa.array(np.arange(count * width).reshape(width, count).T.ravel()))
    after = pa.MapArray.from_arrays(pa.array(np.arange(0, count * width + 1, width), pa.int32()), names, values)
    key = pa.MapArray.from_arrays(
        pa.array(np.arange(count + 1), pa.int32()), pa.repeat("id", count), columns[0],
    )
    constants = {
        "incarnation": 1, "seq": 0, "table": schema.table, "op": op, "schema_id": schema.schema_id, "txid": 1,
        "last_in_txn": True, "origin": "log", "batch": 1 if op == "c" else 2, "partial": False,
    }
    made = {name: pa.repeat(pa.scalar(value, EVENT_COLUMNS.field(name).type), count)
            for name, value in constants.items()}
    made |= {
        "lsn": pa.array(first + 1 + np.arange(count)), "key": key, "after": after,
        "committed_at": pa.array(1_700_000_000_000_000 + first + np.arange(count)).cast(pa.timestamp("us", tz="UTC")),
        "undecoded": pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string())),
    }
    return pa.table([
        made[f.name] if f.name in made else pa.nulls(count, f.type) for f in EVENT_COLUMNS
    ], schema=EVENT_COLUMNS)


if __name__ == "__main__":
    main()
