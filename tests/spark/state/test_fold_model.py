"""Random histories, folded by Spark in random steps, against the plain-Python fold.

Keys are independent of one another but for truncates, so one frame holds a thousand histories, each under a key of its
own, and Spark runs a handful of jobs. A failing key's history is in the assertion.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.sql import query
from tests.model.state import Event, fold
from tests.spark.state.conftest import Lake, table_schema

COLUMNS = ["a", "b", "c"]
KEYS = int(os.environ.get("DBLAKE_HISTORIES", "1000"))
BATCHES = 4


def _history(draw: random.Random, key: str, whole: bool) -> list[Event]:
    """Any operations in any order: the fold owes an answer also to what a database would not do."""
    events = []
    for number in range(draw.randint(1, 7)):
        op = draw.choice("cuurd" if whole else "cuuuffrd")
        image = {c: draw.choice([None, f"{c}{number}"]) for c in COLUMNS if whole or draw.random() < 0.6}
        at = (1, draw.randrange(10_000), 0)
        events.append(Event(at, op, key, {} if op == "d" else image))
    unique = {event.at: event for event in events}
    return list(unique.values())


def _batched(events: list[Event]) -> list[Event]:
    """Positions never fall from one batch to the next, which is what reconcile promises."""
    ordered = sorted(events, key=lambda event: event.at)
    size = -(-len(ordered) // BATCHES)
    return [replace(event, batch=1 + place // size) for place, event in enumerate(ordered)]


def test_spark_folds_as_the_model_does(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("DBLAKE_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    schemas = {name: table_schema(f"public.{name}", "id text key", *(f"{c} text" for c in COLUMNS))
               for name in ("plain", "whole", "truncated")}
    tables = {name: [e for k in range(KEYS) for e in _history(draw, f"k{k}", name == "whole")] for name in schemas}
    tables["truncated"] = [e for e in tables["truncated"] if e.at[1] not in (2500, 6000)]
    tables["truncated"] += [Event((1, at, 0), "t", "", {}) for at in (2500, 6000)]
    tables = {name: _batched(events) for name, events in tables.items()}

    lake = Lake(spark, tmp_path)
    for schema in schemas.values():
        lake.schema(schema)
    lake.append([
        lake.frame(schemas[name], batch, [
            (e.at[1], e.op, None if e.op == "t" else e.key, None if e.op in "dt" else {"id": e.key, **e.after})
            for e in events if e.batch == batch
        ])
        for name, events in tables.items() for batch in range(1, BATCHES + 1)
    ])
    lake.fold(batches_per_step=draw.choice([1, 2]), until_batch=2)

    folded = {name: fold(events, COLUMNS) for name, events in tables.items()}
    for name, expected in folded.items():
        live = {key: row.values for key, row in expected.items() if not row.deleted}
        for relation in (f"{name}_live", f"(SELECT * FROM {name}_history WHERE _to IS NULL)"):
            found = query(spark, lake.paths, f"SELECT id, a, b, c FROM {relation}").collect()
            assert {r["id"]: {c: r[c] for c in COLUMNS} for r in found} == live, f"seed {seed}, {relation}"
            assert len(found) == len(live)
        missing = query(spark, lake.paths, f"SELECT id, _missing FROM {name}_history WHERE _to IS NULL").collect()
        assert {r["id"]: frozenset(r["_missing"]) for r in missing} == {k: expected[k].missing for k in live}

    lake.fold(batches_per_step=draw.choice([1, 2]))
    for name, expected in folded.items():
        rows = {
            r["id"]: ((r["_incarnation"], r["_lsn"], r["_seq"]), r["_deleted"], {c: r[c] for c in COLUMNS},
                      frozenset(r["_missing"]))
            for r in lake.state("public", name).collect()
        }
        assert rows.keys() == expected.keys()
        for key, row in expected.items():
            history = [e for e in tables[name] if e.key == key or e.op == "t"]
            assert rows[key] == (row.at, row.deleted, row.values, row.missing), f"seed {seed}, {name}: {history}"
