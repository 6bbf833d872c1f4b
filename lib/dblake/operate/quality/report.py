"""The report of a run of ``check``: its outcomes, and the error that they amount to.

Place: the result of ``run``, which jobs and ``cycle`` evaluate. Guarantee: rows that are wrong come before expectations
that could not be evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dblake.base.core.errors import ChecksFailed, ConfigError, DblakeError
from dblake.operate.quality.results import ExpectationResult, select_failed
from dblake.operate.quality.user_suite import USER_SUITE_PREFIX

_MAX_LISTED_OUTCOMES = 5


@dataclass(frozen=True, slots=True)
class QualityReport:
    """The outcomes of a run; ``pages`` is the first HTML page, None if no pages were built."""

    outcomes: Sequence[ExpectationResult]
    pages: str | None

    def require_success(self) -> None:
        """Raise unless every expectation passed.

        Raises ChecksFailed if rows are wrong, ConfigError if only expectations of user suites could not be evaluated,
        and DblakeError if built-in ones could not.
        """
        failed = select_failed(self.outcomes)
        if failed:
            listed = [str(outcome) for outcome in failed[:_MAX_LISTED_OUTCOMES]]
            if len(failed) > _MAX_LISTED_OUTCOMES:
                listed.append(f"and {len(failed) - _MAX_LISTED_OUTCOMES} more")
            raise ChecksFailed(
                f"{len(failed)} of {len(self.outcomes)} expectations failed: {'; '.join(listed)}",
                next_step='find the cause in docs/runbook.md, "65 a check failed"',
            )
        faults = [outcome for outcome in self.outcomes if outcome.fault]
        listed = [str(outcome) for outcome in faults[:_MAX_LISTED_OUTCOMES]]
        if faults and all(outcome.suite.startswith(USER_SUITE_PREFIX) for outcome in faults):
            raise ConfigError(
                "; ".join(f"{outcome.suite}: {text}" for outcome, text in zip(faults, listed, strict=False)),
                next_step="correct the suite",
            )
        if faults:
            raise DblakeError(f"{'; '.join(listed)}; this is a bug", next_step="report this message")
