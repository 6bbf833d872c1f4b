"""Random histories, folded by Spark in random steps, against the plain-Python fold.

Keys are independent of one another but for truncates and schema changes, so one frame holds a thousand histories, each
under a key of its own, and Spark runs a handful of jobs. A failing key's history is in the assertion.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path

from pyspark.sql import Row, SparkSession

from dblake.core.schema import TableSchema
from dblake.sql.query import query
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


def _altered(draw: random.Random) -> tuple[list[TableSchema], list[int], list[Event]]:
    """A table's schemas, from which lsn on each holds but the first, and histories of keys through all of them.

    A column comes, one goes, one gets another name, one a wider type; truncates come in between, and updates leave
    columns out.
    """
    columns = {"a": "text", "b": "text", "c": "text", "w": "smallint"}
    schemas = [table_schema("public.altered", "id text key", *map(" ".join, columns.items()))]
    for change in draw.sample(["add", "drop", "rename", "widen"], 4):
        gone = draw.choice([name for name, kind in columns.items() if kind == "text" and name != "d"])
        if change == "widen":
            columns["w"] = "bigint"
        elif change == "add":
            columns["d"] = "text"
        else:
            columns.pop(gone)
            columns |= {"e": "text"} if change == "rename" else {}
        schemas.append(table_schema("public.altered", "id text key", *map(" ".join, columns.items())))
    since, truncates = sorted(draw.sample(range(1, 9_999), 4)), sorted(draw.sample(range(1, 9_999), 2))
    events = [Event((1, at, 0), "t", "", {}) for at in truncates]
    places = sorted(set(range(10_000)) - set(truncates))
    for number in range(KEYS):
        there, last = False, 0
        for at in sorted(draw.sample(places, draw.randint(1, 7))):
            there = there and not any(last < cut <= at for cut in truncates)
            last = at
            op = draw.choice("uuufrd") if there else draw.choice("cr")
            names = [c.name for c in schemas[bisect_right(since, at)].columns if c.name != "id"]
            image = {n: draw.choice([None, str(at)]) for n in names if op in "cr" or draw.random() < 0.6}
            there = op != "d"
            events.append(Event((1, at, 0), op, f"k{number}", {} if op == "d" else image, 0, frozenset(names)))
    return schemas, since, events


def _batched(events: list[Event]) -> list[Event]:
    """Positions never fall from one batch to the next, which is what reconcile promises."""
    ordered = sorted(events, key=lambda event: event.at)
    size = -(-len(ordered) // BATCHES)
    return [replace(event, batch=1 + place // size) for place, event in enumerate(ordered)]


def test_spark_folds_as_the_model_does(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("DBLAKE_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    schemas = {name: [table_schema(f"public.{name}", "id text key", *(f"{c} text" for c in COLUMNS))]
               for name in ("plain", "whole", "truncated")}
    tables = {name: [e for k in range(KEYS) for e in _history(draw, f"k{k}", name == "whole")] for name in schemas}
    tables["truncated"] = [e for e in tables["truncated"] if e.at[1] not in (2500, 6000)]
    tables["truncated"] += [Event((1, at, 0), "t", "", {}) for at in (2500, 6000)]
    schemas["altered"], since, tables["altered"] = _altered(draw)
    tables = {name: _batched(events) for name, events in tables.items()}

    lake = Lake(spark, tmp_path)
    frames = []
    for name, versions in schemas.items():
        for version, schema in enumerate(versions):
            first = since[version - 1] if version else 0
            until = since[version] if version < len(versions) - 1 else 10_000
            events = [e for e in tables[name] if first <= e.at[1] < until]
            lake.schema(schema, lsn=first, batch=min((e.batch for e in events), default=BATCHES))
            frames += [
                lake.frame(schema, batch, [
                    (e.at[1], e.op, None if e.op == "t" else e.key, None if e.op in "dt" else {"id": e.key, **e.after})
                    for e in events if e.batch == batch
                ])
                for batch in range(1, BATCHES + 1)
            ]
    lake.append(frames)
    lake.fold(batches_per_step=draw.choice([1, 2]), until_batch=2)

    known = {name: sorted({c.name for s in versions for c in s.columns} - {"id"}) for name, versions in schemas.items()}
    folded = {name: fold(events, known[name]) for name, events in tables.items()}
    for name, expected in folded.items():
        columns = [c.name for c in schemas[name][-1].columns if c.name != "id"]
        live = {key: {c: row.values[c] for c in columns} for key, row in expected.items() if not row.deleted}
        for relation in (f"{name}_live", f"(SELECT * FROM {name}_history WHERE _to IS NULL)"):
            found = query(spark, lake.paths, f"SELECT id, {', '.join(columns)} FROM {relation}").collect()
            assert {r["id"]: _texts(r, columns) for r in found} == live, f"seed {seed}, {relation}"
            assert len(found) == len(live)
        missing = query(spark, lake.paths, f"SELECT id, _missing FROM {name}_history WHERE _to IS NULL").collect()
        assert {r["id"]: frozenset(r["_missing"]) for r in missing} == {k: expected[k].missing for k in live}

    lake.fold(batches_per_step=draw.choice([1, 2]))
    for name, expected in folded.items():
        rows = {
            r["id"]: ((r["_incarnation"], r["_lsn"], r["_seq"]), r["_deleted"], _texts(r, known[name]),
                      frozenset(r["_missing"]))
            for r in lake.state("public", name).collect()
        }
        assert rows.keys() == expected.keys()
        for key, row in expected.items():
            history = [e for e in tables[name] if e.key == key or e.op == "t"]
            assert rows[key] == (row.at, row.deleted, row.values, row.missing), f"seed {seed}, {name}: {history}"


def _texts(row: Row, columns: list[str]) -> dict[str, str | None]:
    return {name: None if row[name] is None else str(row[name]) for name in columns}
