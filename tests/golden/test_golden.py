"""The lakes that released versions wrote are read and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dblake.serve.consume import Transaction, open_subscription
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.golden.make import GOLDEN, ITEMS, NOTES
from tests.support.consumers import LOCAL_SESSION
from tests.support.lake import CaptureLake
from tests.support.sql_rows import sql_rows

VERSIONS = sorted(folder.name for folder in GOLDEN.iterdir() if (folder / "expected.json").exists())


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of a released version's lake."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "lake"))


def expected(folder: Path, source: str, moment: str) -> dict[str, list[dict[str, str | None]]]:
    """Return the rows at the source by table, when state was folded or when the last batch had landed."""
    rows = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[source][moment]
    return {table: sorted(rows[table], key=lambda row: int(row["id"] or 0)) for table in rows}


def state(lake: CaptureLake) -> dict[str, list[dict[str, str | None]]]:
    """Return the rows of the tables, as text."""
    return {
        table: [{name: None if value is None else str(value) for name, value in row.items()}
                for row in sql_rows(lake.paths, f"SELECT * FROM {table} ORDER BY id")]
        for table in (ITEMS, NOTES)
    }


@pytest.mark.parametrize("source", ["shop", "bills"])
def test_released_lake_is_read_and_continued(folder: Path, source: str) -> None:
    lake = CaptureLake(folder, source)
    assert state(lake) == expected(folder, source, "folded")
    assert {dump["state"] for dump in lake.dumps()} == {"done"}
    assert {dump["table"] for dump in lake.dumps()} == {ITEMS, NOTES}
    live = sql_rows(lake.paths, f"SELECT * FROM {ITEMS}_live ORDER BY id")
    assert [str(row["id"]) for row in live] == [row["id"] for row in expected(folder, source, "landed")[ITEMS]]
    reconcile_once(LOCAL_SESSION, lake.paths)
    assert [result.error for result in run_state(LOCAL_SESSION, lake.paths)] == [None]
    assert state(lake) == expected(folder, source, "landed")


@pytest.mark.parametrize("source", ["shop", "bills"])
def test_consumer_of_released_lake_resumes_at_its_checkpoint(folder: Path, source: str) -> None:
    lake = CaptureLake(folder, source)
    reconcile_once(LOCAL_SESSION, lake.paths)
    resume = (folder / f"{source}.checkpoint").read_text()
    delivered: list[Any] = []
    with open_subscription([lake.paths], resume=resume, until_caught_up=True) as subscription:
        for entry in subscription:
            assert isinstance(entry, Transaction), entry
            delivered += [(event.op, dict(event.key or {})) for event in entry.events if event.origin == "log"]
    assert delivered == [("c", {"id": "5"}), ("u", {"id": "4"}), ("d", {"id": "1"})]
