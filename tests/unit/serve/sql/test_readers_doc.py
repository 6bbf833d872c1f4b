"""The snippets of docs/readers.md, run over a lake with a tombstone."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

DOC = (Path(__file__).parents[4] / "docs" / "readers.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
ORDERS = table_schema("public.orders", "id integer key", "qty integer")
CONF = """
warehouse: ./warehouse
progress: file:./progress
source: {name: shop, type: postgres, host: 127.0.0.1, database: shop, user: dblake, password: "${env:PATH}",
         tables: ["public.*"]}
"""
#: What each snippet prints over two live rows, a tombstone, and one row that state lacks.
PRINTED = ["30\n3\n2\n[{'most': 40}]\n", "2\n", "[(2, 30)]\n", "2\n", "2\n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    lake = PlainLake(folder / "warehouse")
    lake.schema(ORDERS)
    lake.land(1, {ORDERS: [(n, "c", str(n), {"id": str(n), "qty": str(10 * n)}) for n in (1, 2, 3)]})
    lake.land(2, {ORDERS: [(4, "d", "3", None)]})
    lake.fold(2)
    lake.land(3, {ORDERS: [(5_000_000, "c", "4", {"id": "4", "qty": "40"})]})
    (folder / "conf.yaml").write_text(CONF)
    return folder


CASES = list(zip([snippet for snippet in SNIPPETS if "spark" not in snippet], PRINTED, strict=True))


@pytest.mark.parametrize(("snippet", "printed"), CASES)
def test_snippet_prints_live_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, snippet: str, printed: str
) -> None:
    monkeypatch.chdir(folder)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(snippet, "readers.md", "exec"), {})  # noqa: S102 - the documentation's own code
    assert out.getvalue() == printed


def test_spark_snippet_is_the_only_other_one() -> None:
    assert len(SNIPPETS) == len(PRINTED) + 1
