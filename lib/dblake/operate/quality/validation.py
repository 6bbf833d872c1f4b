"""Evaluate suites with great-expectations and build its HTML pages; the only module that imports it.

Place: between ``quality.run`` and ``quality.results``. Guarantee: outcomes and pages hold counts and no value of any
row. Expectations are evaluated for counts only. Of a result, only the numbers that are counts are kept. Of an exception
only the error condition is kept: the message may quote values. The context is in memory and leaves no files.
"""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import great_expectations as gx
import pandas as pd
from great_expectations.core.expectation_validation_result import ExpectationValidationResult
from great_expectations.core.run_identifier import RunIdentifier
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.data_context.types.resource_identifiers import (
    ExpectationSuiteIdentifier,
    ValidationResultIdentifier,
)
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from pyspark.sql import DataFrame

from dblake.base.core.names import folder
from dblake.operate.quality.results import ExpectationResult
from dblake.operate.quality.suite import Expectation, Suite

_COUNTS_ONLY = {"result_format": "BASIC", "partial_unexpected_count": 0}
_COUNTS = ("element_count", "unexpected_count", "missing_count")
_PERCENTAGES = ("unexpected_percent", "missing_percent", "unexpected_percent_total", "unexpected_percent_nonmissing")
# These observe a number of rows; the observed value of other expectations may be a row's value.
_ROW_COUNT_PREFIX = "expect_table_row_count_"
_UNEXPECTED_ROWS = "unexpected_rows_expectation"
_INDEX = "dblake_index"
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
_SITE = "pages"


class Validation:
    """The great-expectations context of one run of ``check``; pages show ``run_id`` and ``started``."""

    def __init__(self, run_id: str, started: datetime) -> None:
        # Its log messages quote what failed, with values.
        logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        # The caller persists the frames.
        self._spark = self._context.data_sources.add_spark("spark", persist=False)
        self._pandas = self._context.data_sources.add_pandas("pandas")
        self._run = RunIdentifier(run_name=run_id, run_time=started)

    def evaluate(self, suite: Suite, rows: DataFrame | pd.DataFrame) -> list[ExpectationResult]:
        """Evaluate a suite over its rows, in Spark or pandas; return one outcome per expectation, in the suite's order.

        In Spark an expectation is a job or two; in pandas it takes milliseconds.
        """
        # Pages show names unescaped, and names come from the database.
        name = html.escape(f"{suite.name} {suite.table}")
        source = self._pandas if isinstance(rows, pd.DataFrame) else self._spark
        asset = source.add_dataframe_asset(name)
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": rows})
        # All in one call: an expectation added later replaces one of the same type and columns.
        expectations = gx.ExpectationSuite(name=name, expectations=[
            _to_configuration(expectation, {_INDEX: index}).to_domain_obj()
            for index, expectation in enumerate(suite.expectations)
        ])
        validated = batch.validate(expectations, result_format=_COUNTS_ONLY)
        results: dict[int, ExpectationValidationResult] = {}
        for result in validated.results:
            results[result.expectation_config.meta.pop(_INDEX)] = _without_values(result)
        validated.results = [results[index] for index in range(len(suite.expectations))]
        self._store_for_pages(suite, validated)
        return [
            _to_outcome(suite, expectation, result)
            for expectation, result in zip(suite.expectations, validated.results, strict=True)
        ]

    def build_pages(self, folder: Path) -> None:
        """Build HTML pages of all suites evaluated in an empty local folder; the first is ``index.html``."""
        self._context.add_data_docs_site(_SITE, {
            "class_name": "SiteBuilder", "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
        })
        self._context.build_data_docs(site_names=[_SITE])

    def _store_for_pages(self, suite: Suite, validated: Any) -> None:
        """Store the results under the names of suite and table, from which pages take their paths."""
        validated.meta |= {"run_id": self._run, "validation_time": datetime.now(UTC)}
        suite_id = ExpectationSuiteIdentifier(name=folder(suite.name))
        key = ValidationResultIdentifier(
            expectation_suite_identifier=suite_id, run_id=self._run, batch_identifier=folder(suite.table)
        )
        self._context.validation_results_store.store_validation_results(validated, key, suite_id)


def find_fault(expectation: Expectation) -> str | None:
    """Return why an expectation as written cannot be evaluated, in one line; None if it can."""
    try:
        _to_configuration(expectation, {}).to_domain_obj()
    except ValueError as error:
        # pydantic lists one fault per field; its own text has several lines and may quote the given value.
        faults = error.errors() if hasattr(error, "errors") else []
        return "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in faults) or "its arguments are not valid"
    except gx.exceptions.ExpectationNotFoundError:
        return "there is no such expectation"
    except (gx.exceptions.GreatExpectationsError, TypeError):
        return "its arguments are not valid"
    return None


def _to_configuration(expectation: Expectation, meta: Mapping[str, Any]) -> ExpectationConfiguration:
    extra = dict(expectation.extra)
    all_meta = {**(extra.pop("meta", None) or {}), **meta}
    return ExpectationConfiguration(
        type=expectation.type, kwargs=dict(expectation.kwargs), meta=all_meta,
        description=html.escape(expectation.description) or None, **extra,
    )


def _without_values(result: ExpectationValidationResult) -> ExpectationValidationResult:
    """Reduce a result, in place, to counts and the error condition."""
    figures, kind = result.result or {}, result.expectation_config.type
    counts = {name: figures[name] for name in (*_COUNTS, *_PERCENTAGES) if isinstance(figures.get(name), (int, float))}
    if isinstance(figures.get("observed_value"), int) and kind.startswith((_ROW_COUNT_PREFIX, _UNEXPECTED_ROWS)):
        counts["observed_value"] = figures["observed_value"]
    result.result = counts
    condition = _error_condition(result.exception_info)
    result.exception_info = {"raised_exception": condition is not None, "exception_message": condition,
                             # Pages require a string here.
                             "exception_traceback": ""}
    result.expectation_config.kwargs.pop("batch_id", None)
    return result


def _error_condition(info: Mapping[str, Any] | None) -> str | None:
    """Return Spark's condition of the first exception of an expectation's metrics; None if none was raised."""
    if not info:
        return None
    infos = [info] if "raised_exception" in info else [each for each in info.values() if isinstance(each, dict)]
    raised = [each for each in infos if each.get("raised_exception")]
    if not raised:
        return None
    condition = _CONDITION.search(str(raised[0].get("exception_message")))
    return condition[1] if condition else "the evaluation failed"


def _to_outcome(suite: Suite, expectation: Expectation, result: ExpectationValidationResult) -> ExpectationResult:
    counts, kind = result.result, expectation.type
    evaluated, unexpected = counts.get("element_count"), counts.get("unexpected_count")
    if kind.startswith(_ROW_COUNT_PREFIX):
        evaluated = counts.get("observed_value")
    if kind == _UNEXPECTED_ROWS:
        unexpected = counts.get("observed_value")
    return ExpectationResult(
        suite=suite.name, table=suite.table, expectation=kind, column=expectation.column,
        description=expectation.description, success=bool(result.success), evaluated=evaluated, unexpected=unexpected,
        fault=result.exception_info["exception_message"],
        kwargs=json.dumps(expectation.kwargs, sort_keys=True, default=str), since=suite.since, upto=suite.upto,
    )
