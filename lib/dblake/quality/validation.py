"""Suites evaluated by great-expectations, and its pages of what came of them; imported here and nowhere else.

Promise: what leaves this module, outcomes and pages alike, has counts and no value of any row. The expectations are
asked for counts only; of what they answer nothing is kept but numbers that are known to be counts, and of an exception,
whose message may quote values, only its kind. The context lives in memory, so nothing of it is left behind.
"""

from __future__ import annotations

import html
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import great_expectations as gx
from great_expectations.core.expectation_validation_result import ExpectationValidationResult
from great_expectations.core.run_identifier import RunIdentifier
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.data_context.types.resource_identifiers import (
    ExpectationSuiteIdentifier,
    ValidationResultIdentifier,
)
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

from dblake.core.names import folder
from dblake.quality.results import Outcome
from dblake.quality.suite import Expectation, Suite

_COUNTS_ONLY = {"result_format": "BASIC", "partial_unexpected_count": 0}
_COUNTED = ("element_count", "unexpected_count", "missing_count")
_SHARES = ("unexpected_percent", "missing_percent", "unexpected_percent_total", "unexpected_percent_nonmissing")
# These observe a number of rows; what others observe may be a value.
_OBSERVE_ROWS = "expect_table_row_count_"
_OBSERVE_WRONG_ROWS = "unexpected_rows_expectation"
_PLACE = "dblake_place"
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
_SITE = "pages"


class Validation:
    """One run's context. ``about`` names the run on its pages."""

    def __init__(self, run_id: str, started: datetime) -> None:
        # Its messages quote what failed, values and all.
        logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        # The frames are kept by who made them.
        self._source = self._context.data_sources.add_spark("spark", persist=False)
        self._run = RunIdentifier(run_name=run_id, run_time=started)

    def check(self, suite: Suite) -> list[Outcome]:
        """Evaluates a suite; what came of its expectations, in their order."""
        # Pages show names as they are given, and databases choose them.
        name = html.escape(f"{suite.name} {suite.table}")
        asset = self._source.add_dataframe_asset(name)
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": suite.rows})
        # All at once: one that is added alone takes the place of another of the same type and columns.
        asked = gx.ExpectationSuite(name=name, expectations=[
            _configuration(expectation, {_PLACE: place}).to_domain_obj()
            for place, expectation in enumerate(suite.expectations)
        ])
        answer = batch.validate(asked, result_format=_COUNTS_ONLY)
        results: dict[int, ExpectationValidationResult] = {}
        for result in answer.results:
            results[result.expectation_config.meta.pop(_PLACE)] = _without_values(result)
        answer.results = [results[place] for place in range(len(suite.expectations))]
        self._keep(suite, answer)
        return [
            _outcome(suite, expectation, result)
            for expectation, result in zip(suite.expectations, answer.results, strict=True)
        ]

    def write_pages(self, target: Path) -> Path:
        """Puts pages of all suites evaluated in place of those in ``target``; returns the first page."""
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".pages-", dir=target.parent))
        made.chmod(0o755)
        self._context.add_data_docs_site(_SITE, {
            "class_name": "SiteBuilder", "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(made)},
        })
        self._context.build_data_docs(site_names=[_SITE])
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
        return target / "index.html"

    def _keep(self, suite: Suite, answer: Any) -> None:
        """For the pages: these go by the name of the suite and the table."""
        answer.meta |= {"run_id": self._run, "validation_time": datetime.now(UTC)}
        named = ExpectationSuiteIdentifier(name=folder(suite.name))
        key = ValidationResultIdentifier(
            expectation_suite_identifier=named, run_id=self._run, batch_identifier=folder(suite.table)
        )
        self._context.validation_results_store.store_validation_results(answer, key, named)


def problem(expectation: Expectation) -> str | None:
    """What is wrong with an expectation as it is written; None if it can be evaluated."""
    try:
        _configuration(expectation, {}).to_domain_obj()
    except ValueError as error:
        # pydantic's, one fault a place; its own text has several lines and may quote what was given.
        faults = error.errors() if hasattr(error, "errors") else []
        return "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in faults) or type(error).__name__
    except gx.exceptions.ExpectationNotFoundError:
        return "there is no such expectation"
    except (gx.exceptions.GreatExpectationsError, TypeError) as error:
        return type(error).__name__
    return None


def _configuration(expectation: Expectation, meta: Mapping[str, Any]) -> ExpectationConfiguration:
    also = dict(expectation.also)
    known = {**(also.pop("meta", None) or {}), **meta}
    return ExpectationConfiguration(
        type=expectation.type, kwargs=dict(expectation.kwargs), meta=known,
        description=html.escape(expectation.says) or None, **also,
    )


def _without_values(result: ExpectationValidationResult) -> ExpectationValidationResult:
    """The result with counts alone."""
    given, kind = result.result or {}, result.expectation_config.type
    kept = {name: given[name] for name in (*_COUNTED, *_SHARES) if isinstance(given.get(name), (int, float))}
    if isinstance(given.get("observed_value"), int) and kind.startswith((_OBSERVE_ROWS, _OBSERVE_WRONG_ROWS)):
        kept["observed_value"] = given["observed_value"]
    result.result = kept
    fault = _fault(result.exception_info)
    result.exception_info = {"raised_exception": fault is not None, "exception_message": fault,
                             # A page cannot be made of None.
                             "exception_traceback": ""}
    result.expectation_config.kwargs.pop("batch_id", None)
    return result


def _fault(info: Mapping[str, Any] | None) -> str | None:
    """The kind of an exception, if there was one. Several metrics of one expectation may have failed."""
    if not info:
        return None
    infos = [info] if "raised_exception" in info else [each for each in info.values() if isinstance(each, dict)]
    raised = [each for each in infos if each.get("raised_exception")]
    if not raised:
        return None
    said = _CONDITION.search(str(raised[0].get("exception_message")))
    return said[1] if said else "it failed while it was evaluated"


def _outcome(suite: Suite, expectation: Expectation, result: ExpectationValidationResult) -> Outcome:
    counts, kind = result.result, expectation.type
    evaluated, unexpected = counts.get("element_count"), counts.get("unexpected_count")
    if kind.startswith(_OBSERVE_ROWS):
        evaluated = counts.get("observed_value")
    if kind == _OBSERVE_WRONG_ROWS:
        unexpected = counts.get("observed_value")
    return Outcome(
        suite=suite.name, table=suite.table, expectation=kind, column=expectation.column, says=expectation.says,
        success=bool(result.success), evaluated=evaluated, unexpected=unexpected,
        fault=result.exception_info["exception_message"],
        kwargs=json.dumps(expectation.kwargs, sort_keys=True, default=str), since=suite.since, upto=suite.upto,
    )
