"""``check`` on a warehouse that is as it must be, and on one in which everything is wrong: each fault is found, by name
and number, and nothing else is."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.config import MaintainConfig, load_config
from dblake.core.errors import ChecksFailed, ConfigError, ExitCode, UsageError
from dblake.lake.layout import Paths
from dblake.maintenance.run import maintain
from dblake.quality.results import Outcome
from dblake.quality.run import run_check
from jobs.check import check
from pipelines.status import read_status
from tests.spark.quality.conftest import CANARY, Warehouse
from tests.spark.quality.planted import DEFECTS, HARMLESS, NULL, Defect, Found, Rows, event, plant

pytestmark = pytest.mark.timeout(900)

HOME = Path(__file__).parents[3]
OWN: list[tuple[dict[str, Any], bool, int | None, int | None, str | None]] = [
    # what is expected, whether it is so, evaluated, unexpected, fault
    ({"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "customer", "value_set": ["nobody"]}},
     False, 40, 37, None),
    ({"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "price"}, "severity": "warning"},
     True, 40, 0, None),
    ({"type": "expect_column_most_common_value_to_be_in_set", "kwargs": {"column": "customer", "value_set": ["x"]}},
     False, None, None, None),
    ({"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}, False, 40, None, None),
    ({"type": "unexpected_rows_expectation",
      "kwargs": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE customer IS NULL"}}, False, None, 3, None),
    ({"type": "unexpected_rows_expectation",
      "kwargs": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE CAST(customer AS INT) = 1"}},
     False, None, None, "CAST_INVALID_INPUT"),
]


def configured(paths: Paths, suites: str = "") -> Path:
    conf = Path(paths.warehouse) / "shop.yaml"
    conf.write_text(json.dumps({
        "warehouse": paths.warehouse, "progress": "file:./progress",
        "source": {"name": "shop", "type": "postgres", "host": "h", "database": "d", "user": "u",
                   "password": "${env:NONE}", "tables": ["*.*"]},
        "quality": {"suites": suites or None},
    }), encoding="utf-8")
    return conf


def ask(conf: Path, *arguments: str) -> Result:
    return CliRunner().invoke(check, ["--conf", str(conf), *arguments])


def found(outcome: dict[str, Any]) -> Found:
    return outcome["suite"], outcome["expectation"].split("column_")[-1].split("compound_")[-1], outcome["column"]


@pytest.fixture(scope="module")
def spoilt(spark: SparkSession, copied: Warehouse) -> tuple[Paths, Result]:
    """One warehouse with all defects in it, checked once, with a suite of the user's."""
    paths = copied()
    plant(paths, [*DEFECTS, *HARMLESS])
    suites = Path(paths.warehouse) / "suites"
    suites.mkdir()
    (suites / "public.orders.json").write_text(json.dumps({"name": "mine", "expectations": [own[0] for own in OWN]}))
    return paths, ask(configured(paths, "suites"), "--json")


@pytest.fixture(scope="module")
def outcomes(spoilt: tuple[Paths, Result]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(spoilt[1].stdout)
    return told


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.what for defect in DEFECTS])
def test_a_planted_defect_is_found(outcomes: list[dict[str, Any]], defect: Defect) -> None:
    wanted = Counter[Found]()
    for each in DEFECTS:
        wanted.update(each.found)
    wrong = {found(outcome): outcome["unexpected"] for outcome in outcomes if not outcome["success"]}
    assert {name: wrong.get(name) for name in defect.found} == {name: wanted[name] for name in defect.found}


def test_nothing_else_is_found(outcomes: list[dict[str, Any]]) -> None:
    planted = {name for defect in DEFECTS for name in defect.found}
    ours = {found(outcome) for outcome in outcomes if not outcome["success"] and not outcome["suite"].startswith("own")}
    assert ours == planted


def test_every_expectation_of_ours_has_a_defect(outcomes: list[dict[str, Any]]) -> None:
    planted = {name for defect in DEFECTS for name in defect.found}
    of_lines = {("state", NULL, "order_id"), ("state", NULL, "place"), ("state", NULL, "who")}
    assert {found(o) for o in outcomes if not o["suite"].startswith("own")} - planted == of_lines


def test_users_suites_are_counted_without_values(outcomes: list[dict[str, Any]]) -> None:
    own = [outcome for outcome in outcomes if outcome["suite"] == "own/public.orders.json"]
    assert [(o["success"], o["evaluated"], o["unexpected"], o["fault"]) for o in own] == [each[1:] for each in OWN]


def test_a_failing_check_ends_with_65_and_says_what_where_and_how_many(spoilt: tuple[Paths, Result]) -> None:
    error = spoilt[1].exception
    assert isinstance(error, ChecksFailed) and error.exit_code == 65 == ExitCode.WRONG_DATA and not error.retryable
    assert "landing: expect_column_values_to_be_in_set(missing_after): 1 of " in error.what


def test_status_tells_what_the_newest_check_found(spoilt: tuple[Paths, Result]) -> None:
    paths, said = spoilt
    document = read_status(load_config(configured(paths, "suites")), ask_source=False)
    outcomes = json.loads(said.stdout)
    assert document["check"]["expectations"] == len(outcomes)
    assert document["check"]["failed"] and len(document["check"]["failed"]) == sum(not o["success"] for o in outcomes)
    problems = [(p["table"], p["detail"]) for p in document["problems"] if p["code"] == "check_failed"]
    assert ("landing", "expect_column_values_to_be_in_set(missing_after): 1 rows") in problems
    assert ("public.orders", "expect_table_row_count_to_equal: does not hold") in problems
    assert CANARY not in str(document)


def test_status_of_a_warehouse_nobody_has_checked(copied: Warehouse) -> None:
    document = read_status(load_config(configured(copied())), ask_source=False)
    assert document["check"] is None and "check_failed" not in {p["code"] for p in document["problems"]}


def test_the_command_itself_ends_with_65_and_one_line(copied: Warehouse) -> None:
    paths = copied()
    plant(paths, [defect for defect in DEFECTS if defect.what == "a key column that is NULL"])
    done = subprocess.run(
        [HOME / "spark-submit.sh", "check", "--conf", configured(paths), "--table", "public.orders"],
        capture_output=True, text=True, timeout=300, check=False,
    )
    said = [line for line in done.stderr.splitlines() if "expectations failed" in line]
    assert (done.returncode, len(said)) == (65, 1), done.stderr
    assert "public.orders: expect_column_values_to_not_be_null(id): 1 of " in said[0]
    assert "Traceback" not in done.stderr and "expect_column_values_to_not_be_null" in done.stdout


def test_neither_results_nor_pages_hold_a_value(spoilt: tuple[Paths, Result]) -> None:
    paths, said = spoilt
    assert CANARY not in said.stdout and CANARY not in str(said.exception)
    rows = DeltaTable(paths.check_results).to_pyarrow_table().to_pylist()
    assert len(rows) == len(json.loads(said.stdout)) and CANARY not in str(rows)
    pages = [page.read_text(encoding="utf-8") for page in Path(paths.check_pages).rglob("*.html")]
    # A page for each suite of a table, and the first one.
    assert len(pages) == 1 + 9
    assert any("state public.orders" in page and "d`e is NOT NULL" in page for page in pages)
    assert not [page for page in pages if CANARY in page]


def test_a_run_looks_at_what_came_since_all_was_well(spark: SparkSession, copied: Warehouse) -> None:
    paths = copied()
    conf = configured(paths)
    clean = ask(conf)
    assert (clean.exit_code, clean.stdout.splitlines()[0]) == (
        0, "all 68 expectations in 8 suites passed"
    ), clean.stdout
    assert ask(conf).stdout == "no new data since the last successful check\n"

    # As if that had been when landing was at the batch in which key 4 was deleted.
    upto = DeltaTable(paths.landing).transaction_version("capture/shop")
    since = batch_of(paths, event({"id": "4"}, "d"))
    DeltaTable(paths.check_results).update(updates={"upto": str(since)}, predicate=f"upto = {upto}")
    plant(paths, [Defect("", "events", two_images_lost, {})])
    failing = ask(conf)
    assert isinstance(failing.exception, ChecksFailed)
    lines = [line for line in failing.stdout.splitlines() if "lacks_image" in line]
    assert [cell.strip() for cell in lines[0].split("│")[1:-2]] == [
        "events", "events", "expect_column_values_to_be_in_set", "lacks_image", "1", "9"
    ]

    again = run_check(spark, paths, [])
    assert {(o.suite, o.since, o.upto) for o in again.outcomes} == {("events", since, upto)}
    assert wrong(again.outcomes) == [("lacks_image", 1)]
    assert wrong(run_check(spark, paths, [], everything=True).outcomes) == [("lacks_image", 2)]


def batch_of(paths: Paths, like: dict[str, Any]) -> int:
    rows = Rows(DeltaTable(paths.events).to_pyarrow_table().to_pylist())
    batch: int = rows.one(**like)["batch"]
    return batch


def two_images_lost(rows: Rows) -> None:
    rows.set({"after": None}, **event({"id": "3"}, "u"))
    rows.set({"after": None}, **event({"id": "105"}))


def wrong(outcomes: Any) -> list[tuple[str | None, int | None]]:
    return [(o.column, o.unexpected) for o in outcomes if isinstance(o, Outcome) and not o.success]


def test_what_upkeep_has_removed_is_not_missed(spark: SparkSession, copied: Warehouse) -> None:
    paths = copied()
    # As if all of it were old.
    kept = maintain(spark, paths, MaintainConfig().model_copy(update={"events_days": 0}))
    assert [table.rows_deleted > 0 for table in kept if table.table == "events"] == [True]
    assert wrong(run_check(spark, paths, [], everything=True).outcomes) == []


def test_some_tables_alone(spark: SparkSession, copied: Warehouse) -> None:
    paths = copied()
    report = run_check(spark, paths, [], tables=["public.visits"])
    assert {(o.suite, o.table) for o in report.outcomes} == {("state", "public.visits")}
    with pytest.raises(UsageError, match=r"public\.nothing.*public\.lines, public\.orders, public\.visits"):
        run_check(spark, paths, [], tables=["public.nothing"])


@pytest.mark.parametrize(
    ("file", "kwargs", "said"),
    [
        ("public.orders.json", {"column": "prize"}, "expectation 1 .*: public.orders has no column prize"),
        ("public.odrers.json", {"column": "price"}, "there is no table public.odrers here"),
    ],
)
def test_a_suite_that_does_not_fit_the_table_is_refused_by_name(
    spark: SparkSession, copied: Warehouse, file: str, kwargs: dict[str, str], said: str
) -> None:
    paths = copied()
    suites = Path(paths.warehouse) / "suites"
    suites.mkdir()
    suite = {"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": kwargs}]}
    (suites / file).write_text(json.dumps(suite))
    result = ask(configured(paths, "suites"), *(["--table", "public.orders"] if "orders" in file else []))
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match=said):
        raise result.exception
