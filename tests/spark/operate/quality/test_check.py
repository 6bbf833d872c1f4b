"""``check`` on a valid warehouse and on one with every defect: exactly the defects are reported, with their numbers."""

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

from dblake.base.core.errors import ChecksFailed, ConfigError, ExitCode, UsageError
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.config import MaintainConfig, load_config
from dblake.operate.maintenance.run import maintain
from dblake.operate.quality.results import ExpectationResult
from dblake.operate.quality.run import run_check
from dblake.operate.verification.ledger import ChunkDifferences, ChunkResult, Round, append_results
from dblake.serve.sql.query import query
from jobs.check import check
from pipelines.status import read_status
from tests.spark.operate.quality.conftest import CANARY, Warehouse
from tests.spark.operate.quality.defects import DEFECTS, HARMLESS, NULL, Defect, Failure, Rows, event, inject

pytestmark = pytest.mark.timeout(900)

HOME = Path(__file__).parents[4]
USER_CASES: list[tuple[dict[str, Any], bool, int | None, int | None, str | None]] = [
    # expectation, success, evaluated, unexpected, fault
    ({"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "customer", "value_set": ["unknown"]}},
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


def run_job(conf: Path, *arguments: str) -> Result:
    return CliRunner().invoke(check, ["--conf", str(conf), *arguments])


def failure_of(outcome: dict[str, Any]) -> Failure:
    return outcome["suite"], outcome["expectation"].split("column_")[-1].split("compound_")[-1], outcome["column"]


@pytest.fixture(scope="module", params=["pandas", pytest.param("spark", marks=pytest.mark.slow)])
def defective(request: pytest.FixtureRequest, copied: Warehouse) -> tuple[Paths, Result]:
    """Check a warehouse with all defects once, with a user suite; return its paths and the result."""
    paths = copied()
    inject(paths, [*DEFECTS, *HARMLESS])
    suites = Path(paths.warehouse) / "suites"
    suites.mkdir()
    document = {"name": "mine", "expectations": [case[0] for case in USER_CASES]}
    (suites / "public.orders.json").write_text(json.dumps(document))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "spark":
            patch.setattr("dblake.operate.quality.run._SMALL_ROWS", -1)
        return paths, run_job(configured(paths, "suites"), "--json")


@pytest.fixture(scope="module")
def outcomes(defective: tuple[Paths, Result]) -> list[dict[str, Any]]:
    outcomes: list[dict[str, Any]] = json.loads(defective[1].stdout)
    return outcomes


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.name for defect in DEFECTS])
def test_injected_defect_is_reported(outcomes: list[dict[str, Any]], defect: Defect) -> None:
    expected = Counter[Failure]()
    for each in DEFECTS:
        expected.update(each.failures)
    reported = {failure_of(outcome): outcome["unexpected"] for outcome in outcomes if not outcome["success"]}
    assert {name: reported.get(name) for name in defect.failures} == {name: expected[name] for name in defect.failures}


def test_only_injected_defects_are_reported(outcomes: list[dict[str, Any]]) -> None:
    injected = {name for defect in DEFECTS for name in defect.failures}
    built_in = [outcome for outcome in outcomes if not outcome["suite"].startswith("user/")]
    assert {failure_of(outcome) for outcome in built_in if not outcome["success"]} == injected


def test_every_built_in_expectation_has_a_defect(outcomes: list[dict[str, Any]]) -> None:
    injected = {name for defect in DEFECTS for name in defect.failures}
    of_lines = {("state", NULL, "order_id"), ("state", NULL, "place"), ("state", NULL, "who")}
    assert {failure_of(o) for o in outcomes if not o["suite"].startswith("user/")} - injected == of_lines


def test_user_suites_are_reported_by_counts(outcomes: list[dict[str, Any]]) -> None:
    reported = [outcome for outcome in outcomes if outcome["suite"] == "user/public.orders.json"]
    counts = [(o["success"], o["evaluated"], o["unexpected"], o["fault"]) for o in reported]
    assert counts == [case[1:] for case in USER_CASES]


def test_failed_check_exits_65_with_expectation_and_count(defective: tuple[Paths, Result]) -> None:
    error = defective[1].exception
    assert isinstance(error, ChecksFailed) and error.exit_code is ExitCode.WRONG_DATA and not error.retryable
    assert int(error.exit_code) == 65
    assert "landing: expect_column_values_to_be_in_set(missing_after): 1 of " in error.what


def test_status_reports_failures_of_newest_check(defective: tuple[Paths, Result]) -> None:
    paths, result = defective
    document = read_status(load_config(configured(paths, "suites")), ask_source=False)
    outcomes = json.loads(result.stdout)
    assert document["check"]["expectations"] == len(outcomes)
    assert document["check"]["failed"] and len(document["check"]["failed"]) == sum(not o["success"] for o in outcomes)
    problems = [(p["table"], p["detail"]) for p in document["problems"] if p["code"] == "check_failed"]
    assert ("landing", "expect_column_values_to_be_in_set(missing_after): 1 rows failed") in problems
    assert ("public.orders", "expect_table_row_count_to_equal: failed") in problems
    assert CANARY not in str(document)


def test_status_without_check_has_no_check_problem(copied: Warehouse) -> None:
    document = read_status(load_config(configured(copied())), ask_source=False)
    assert document["check"] is None and "check_failed" not in {p["code"] for p in document["problems"]}


@pytest.mark.slow
def test_check_command_exits_65_with_one_error_line(copied: Warehouse) -> None:
    paths = copied()
    inject(paths, [defect for defect in DEFECTS if defect.name == "a key column that is NULL"])
    done = subprocess.run(
        [HOME / "spark-submit.sh", "check", "--conf", configured(paths), "--table", "public.orders"],
        capture_output=True, text=True, timeout=300, check=False,
    )
    errors = [line for line in done.stderr.splitlines() if "expectations failed" in line]
    assert (done.returncode, len(errors)) == (65, 1), done.stderr
    assert "public.orders: expect_column_values_to_not_be_null(id): 1 of " in errors[0]
    assert "Traceback" not in done.stderr and "expect_column_values_to_not_be_null" in done.stdout


def test_results_and_pages_hold_no_row_value(defective: tuple[Paths, Result]) -> None:
    paths, result = defective
    assert CANARY not in result.stdout and CANARY not in str(result.exception)
    rows = DeltaTable(paths.check_results).to_pyarrow_table().to_pylist()
    assert len(rows) == len(json.loads(result.stdout)) and CANARY not in str(rows)
    pages = [page.read_text(encoding="utf-8") for page in Path(paths.check_pages).rglob("*.html")]
    # One page per suite of a table, and the index.
    assert len(pages) == 1 + 9
    assert any("state public.orders" in page and "d`e is NOT NULL" in page for page in pages)
    assert not [page for page in pages if CANARY in page]


def test_check_covers_batches_since_last_success(spark: SparkSession, copied: Warehouse) -> None:
    paths = copied()
    conf = configured(paths)
    clean = run_job(conf)
    assert (clean.exit_code, clean.stdout.splitlines()[0]) == (
        0, "all 68 expectations in 8 suites passed"
    ), clean.stdout
    assert run_job(conf).stdout == "no new data since the last successful check\n"

    # As if the successful check had run when landing was at the batch that deletes key 4.
    upto = DeltaTable(paths.landing).transaction_version("capture/shop")
    since = batch_of(paths, event({"id": "4"}, "d"))
    DeltaTable(paths.check_results).update(updates={"upto": str(since)}, predicate=f"upto = {upto}")
    inject(paths, [Defect("", "events", drop_two_images, {})])
    failing = run_job(conf)
    assert isinstance(failing.exception, ChecksFailed)
    lines = [line for line in failing.stdout.splitlines() if "lacks_image" in line]
    assert [cell.strip() for cell in lines[0].split("│")[1:-2]] == [
        "events", "events", "expect_column_values_to_be_in_set", "lacks_image", "1", "9"
    ]

    report = run_check(spark, paths, [])
    assert {(o.suite, o.since, o.upto) for o in report.outcomes} == {("events", since, upto)}
    assert failures(report.outcomes) == [("lacks_image", 1)]
    assert failures(run_check(spark, paths, [], everything=True).outcomes) == [("lacks_image", 2)]


def batch_of(paths: Paths, where: dict[str, Any]) -> int:
    rows = Rows(DeltaTable(paths.events).to_pyarrow_table().to_pylist())
    batch: int = rows.first(**where)["batch"]
    return batch


def drop_two_images(rows: Rows) -> None:
    rows.set({"after": None}, **event({"id": "3"}, "u"))
    rows.set({"after": None}, **event({"id": "105"}))


def failures(outcomes: Any) -> list[tuple[str | None, int | None]]:
    return [(o.column, o.unexpected) for o in outcomes if isinstance(o, ExpectationResult) and not o.success]


@pytest.mark.slow
def test_check_after_maintenance_removed_events_passes(spark: SparkSession, copied: Warehouse) -> None:
    paths = copied()
    # As if all events were old.
    results = maintain(spark, paths, MaintainConfig().model_copy(update={"events_days": 0}))
    assert [table.rows_deleted > 0 for table in results if table.table == "events"] == [True]
    assert failures(run_check(spark, paths, [], everything=True).outcomes) == []


def test_check_of_given_tables_covers_only_their_state(spark: SparkSession, copied: Warehouse) -> None:
    paths = copied()
    report = run_check(spark, paths, [], tables=["public.visits"])
    assert {(o.suite, o.table) for o in report.outcomes} == {("state", "public.visits")}
    with pytest.raises(UsageError, match=r"public\.nothing.*public\.lines, public\.orders, public\.visits"):
        run_check(spark, paths, [], tables=["public.nothing"])


@pytest.mark.parametrize(
    ("file", "kwargs", "message"),
    [
        ("public.orders.json", {"column": "prize"}, "expectation 1 .*: public.orders has no column prize"),
        ("public.odrers.json", {"column": "price"}, "there is no table public.odrers"),
    ],
)
def test_suite_for_unknown_table_or_column_is_rejected(
    spark: SparkSession, copied: Warehouse, file: str, kwargs: dict[str, str], message: str
) -> None:
    paths = copied()
    suites = Path(paths.warehouse) / "suites"
    suites.mkdir()
    suite = {"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": kwargs}]}
    (suites / file).write_text(json.dumps(suite))
    result = run_job(configured(paths, "suites"), *(["--table", "public.orders"] if "orders" in file else []))
    assert isinstance(result.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise result.exception


def test_check_fails_while_newest_verification_differs(spark: SparkSession, copied: Warehouse) -> None:
    paths = copied()
    wrong = ChunkResult(Round("a"), "public.orders", "c", Position(1, 5), 1, rows_compared=3, closing=True,
                        differences=ChunkDifferences(different=["4"], columns={"note": 1}))
    append_results(paths, [wrong], 1)
    rows = query(spark, paths, "SELECT table, different_keys, columns FROM dblake.verifications").collect()
    assert [tuple(row) for row in rows] == [("public.orders", ["4"], {"note": 1})]
    failed = [outcome for outcome in run_check(spark, paths, []).outcomes if not outcome.success]
    assert [(each.suite, each.table, each.column, each.unexpected) for each in failed] == [
        ("verification", "verifications", "differences", 1)
    ]
    append_results(paths, [ChunkResult(Round("b"), "public.orders", "d", Position(1, 6), 2, closing=True)], 2)
    assert run_check(spark, paths, []).outcomes[0].success
