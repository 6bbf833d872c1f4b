"""Users' suite files: which are valid, and the errors for those that are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dblake.base.core.errors import ConfigError
from dblake.operate.quality.user_suite import read_suite, read_suites

HOME = Path(__file__).parents[4]
NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "price"}}


def write(folder: Path, text: str, name: str = "public.orders.json") -> Path:
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
def test_suite_file_takes_table_from_name_or_meta(tmp_path: Path, name: str, meta: dict[str, str], table: str) -> None:
    document = {"name": "mine", "expectations": [{**NOT_NULL, "id": "x", "severity": "critical"}], "meta": meta}
    suite = read_suite(write(tmp_path, json.dumps(document), name))
    assert (suite.table, suite.name) == (table, f"user/{name}")
    assert [(e.type, e.kwargs, e.column, e.extra) for e in suite.expectations] == [
        (NOT_NULL["type"], {"column": "price"}, "price", {"severity": "critical"})
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "the file has no list of expectations"),
        ('{"expectations": {}}', "the file has no list of expectations"),
        ('{"expectations": []}', "the list of expectations is empty"),
        ('{"expectations": [1]}', "expectation 1 has no type"),
        ('{"expectations": [{"kwargs": {}}]}', "expectation 1 has no type"),
        ('{"expectations": [{"type": "expect_nothing"}]}', r"expectation 1 \(expect_nothing\): there is no such"),
        (json.dumps({"expectations": [NOT_NULL, {**NOT_NULL, "kwargs": {}}]}),
         r"expectation 2 \(expect_column_values_to_not_be_null\): column: field required"),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": {"column": "a", "often": 1}}]}), "often: extra fields"),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": {"column": "a", "mostly": 2}}]}), "mostly: "),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": []}]}), "kwargs is not an object"),
        (json.dumps({"expectations": [{**NOT_NULL, "expectation_type": "x"}]}), "unknown members: expectation_type"),
        (json.dumps({"expectations": [{**NOT_NULL, "kwargs": {"column": {"$PARAMETER": "x"}}}]}), "parameters"),
        (json.dumps({"expectations": [NOT_NULL], "meta": {"table": "orders"}}),
         "neither the file's name nor meta.table"),
    ],
)
def test_invalid_suite_file_error_names_file_and_fault(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"public.orders.json: .*{message}"):
        read_suite(write(tmp_path, text))


def test_suites_folder_is_read_in_file_name_order(tmp_path: Path) -> None:
    for name in ("public.b.json", "public.a.json"):
        write(tmp_path, json.dumps({"expectations": [NOT_NULL]}), name)
    write(tmp_path, "notes", "README.md")
    assert [suite.table for suite in read_suites(str(tmp_path))] == ["public.a", "public.b"]


def test_missing_suites_folder_error_names_key_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quality\.suites: the folder .*/none does not exist"):
        read_suites(str(tmp_path / "none"))


def test_other_jobs_do_not_import_great_expectations() -> None:
    others = ", ".join(f"jobs.{file.stem}" for file in sorted((HOME / "jobs").glob("*.py")) if file.stem != "check")
    code = f"import sys, {others}; sys.exit('great_expectations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, env={"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"},
                          check=False).returncode == 0
