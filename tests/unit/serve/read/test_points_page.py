"""The snippets of docs/points.md run."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from tests.support.transfers import Bank

PAGE = (Path(__file__).parents[4] / "docs" / "points.md").read_text(encoding="utf-8")


def snippet(language: str) -> str:
    """Return the page's only snippet of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_query_for_who_changed_a_row_returns_its_transactions(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    for _ in range(40):
        bank.transfer()
    bank.land(80)
    bank.reconcile()
    events = DeltaTable(bank.paths.events).to_pyarrow_table()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA dblake")
    connection.register("all_events", events)
    connection.execute("CREATE TABLE dblake.events AS SELECT * FROM all_events")
    found = connection.execute(snippet("sql")).fetchall()
    rows = events.to_pylist()
    lsns = {row["lsn"] for row in rows if row["table"] == "public.checking" and dict(row["key"])["id"] == "7"}
    assert len(lsns) > 1
    assert [(row[7], row[8]) for row in found] == sorted((r["lsn"], r["seq"]) for r in rows if r["lsn"] in lsns)
    transfers = [row for row in found if row[7] > 20]
    assert {row[2] for row in transfers} == {"public.checking", "public.saving"}


def test_snippet_reads_tables_as_of_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = Bank(tmp_path / "warehouse")
    for _ in range(10):
        bank.transfer()
    bank.land(20)
    bank.reconcile()
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet("python"), "points.md", "exec"), {})  # noqa: S102 - the page's own snippet
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("public.checking as of 1/60/")
    assert lines[-1] == "1/60/2 2024-01-01 00:01:00+00:00 {}"
