"""The fold of random histories in random steps, compared with the model's fold in plain Python.

Except for truncates and schema changes, keys are independent. So one frame holds a thousand histories, each under its
own key, and Spark runs few jobs. The assertion message contains a failing key's history.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.transform.spark.session import Engine
from tests.model.state import Event, fold
from tests.model.state_histories import COLUMNS, altered_table, in_batches, random_history
from tests.spark.transform.state.conftest import Lake, table_schema
from tests.support.effort import EFFORT
from tests.support.sql_rows import sql_rows

KEYS = 15 * EFFORT
BATCHES = 4


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_fold_of_random_histories_equals_model(spark: SparkSession, tmp_path: Path, engine: Engine) -> None:
    seed = int(os.environ.get("DBLAKE_SEED", random.randrange(2**32)))
    draw = random.Random(seed)
    schemas = {name: [table_schema(f"public.{name}", "id text key", *(f"{c} text" for c in COLUMNS))]
               for name in ("plain", "whole", "truncated")}
    tables = {
        name: [e for k in range(KEYS) for e in random_history(draw, f"k{k}", name == "whole")] for name in schemas
    }
    tables["truncated"] = [e for e in tables["truncated"] if e.at[1] not in (2500, 6000)]
    tables["truncated"] += [Event((1, at, 0), "t", "", {}) for at in (2500, 6000)]
    schemas["altered"], since, tables["altered"] = altered_table(draw, KEYS)
    tables = {name: in_batches(events, BATCHES) for name, events in tables.items()}

    lake = Lake(spark, tmp_path, engine)
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

    columns_of = {
        name: sorted({c.name for s in versions for c in s.columns} - {"id"}) for name, versions in schemas.items()
    }
    folded = {name: fold(events, columns_of[name]) for name, events in tables.items()}
    for name, expected in folded.items():
        columns = [c.name for c in schemas[name][-1].columns if c.name != "id"]
        live = {key: {c: row.values[c] for c in columns} for key, row in expected.items() if not row.deleted}
        listed = ", ".join(("id", *columns))
        newest = f"SELECT {listed}, _missing FROM {name}_history WHERE _to IS NULL"
        for statement in (f"SELECT {listed} FROM {name}_live", newest):
            found = sql_rows(lake.paths, statement)
            assert {r["id"]: _texts(r, columns) for r in found} == live, f"seed {seed}, {statement}"
            assert len(found) == len(live)
        assert {r["id"]: frozenset(r["_missing"]) for r in found} == {k: expected[k].missing for k in live}

    lake.fold(batches_per_step=draw.choice([1, 2]))
    for name, expected in folded.items():
        rows = {
            r["id"]: ((r["_incarnation"], r["_lsn"], r["_seq"]), r["_deleted"], _texts(r, columns_of[name]),
                      frozenset(r["_missing"]))
            for r in DeltaTable(lake.paths.state("public", name)).to_pyarrow_table().to_pylist()
        }
        assert rows.keys() == expected.keys()
        for key, row in expected.items():
            history = [e for e in tables[name] if e.key == key or e.op == "t"]
            assert rows[key] == (row.at, row.deleted, row.values, row.missing), f"seed {seed}, {name}: {history}"


def _texts(row: dict[str, Any], columns: list[str]) -> dict[str, str | None]:
    return {name: None if row[name] is None else str(row[name]) for name in columns}
