"""Suites that users wrote: which can be read, and what is said of those that cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dblake.core.errors import ConfigError
from dblake.quality.user_suite import read_suite, read_suites

HOME = Path(__file__).parents[3]
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "price"}}


def written(folder: Path, text: str, name: str = "public.orders.json") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("name", "meta", "table"),
    [
        ("public.orders.json", {}, "public.orders"),
        ('"My Shop"."Order lines".json', {}, '"My Shop"."Order lines"'),
        ("orders.json", {"table": "public.orders"}, "public.orders"),
        ("public.orders.json", {"great_expectations_version": "1.24.1"}, "public.orders"),
    ],
)
def test_a_file_is_of_the_table_it_names(tmp_path: Path, name: str, meta: dict[str, str], table: str) -> None:
    document = {"name": "mine", "expectations": [{**NOT_NULL, "id": "x", "severity": "critical"}], "meta": meta}
    suite = read_suite(written(tmp_path, json.dumps(document), name))
    assert (suite.table, suite.name) == (table, f"own/{name}")
    assert [(e.type, e.kwargs, e.column, e.also) for e in suite.expectations] == [
        (NOT_NULL["type"], {"column": "price"}, "price", {"severity": "critical"})
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "it has no list of expectations"),
        ('{"expectations": {}}', "it has no list of expectations"),
        ('{"expectations": []}', "its list of expectations is empty"),
        ('{"expectations": [1]}', "expectation 1 has no type"),
        ('{"expectations": [{"kwargs": {}}]}', "expectation 1 has no type"),
        ('{"expectations": [{"type": "expect_nothing"}]}', r"expectation 1 \(expect_nothing\): there is no such"),
        (json.dumps({"expectations": [NOT_NULL, {**NOT_NULL, "kwargs": {}}]}),
         r"expectation 2 \(expect_column_values_to_not_be_null\): column: field required"),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": {"column": "a", "often": 1}}]}), "often: extra fields"),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": {"column": "a", "mostly": 2}}]}), "mostly: "),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": []}]}), "its kwargs are no object"),
        (json.dumps({"expectations": [{**NOT_NULL, "expectation_type": "x"}]}), "expectation_type is no part"),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": {"column": {"$PARAMETER": "x"}}}]}), "parameters"),
        (json.dumps({"expectations": [NOT_NULL], "meta": {"table": "orders"}}), "neither its name nor meta.table"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name_and_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"public.orders.json: .*{said}"):
        read_suite(written(tmp_path, text))


def test_all_files_of_a_folder_by_name(tmp_path: Path) -> None:
    for name in ("public.b.json", "public.a.json"):
        written(tmp_path, json.dumps({"expectations": [NOT_NULL]}), name)
    written(tmp_path, "notes", "README.md")
    assert [suite.table for suite in read_suites(str(tmp_path))] == ["public.a", "public.b"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quality\.suites: there is no folder .*/none"):
        read_suites(str(tmp_path / "none"))


def test_other_jobs_do_not_wait_for_great_expectations() -> None:
    others = ", ".join(f"jobs.{file.stem}" for file in sorted((HOME / "jobs").glob("*.py")) if file.stem != "check")
    code = f"import sys, {others}; sys.exit('great_expectations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, env={"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"},
                          check=False).returncode == 0
