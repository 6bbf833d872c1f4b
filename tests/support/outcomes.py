"""Newest results of suites that are run by command and not in CI: what a run gave, in a file that is committed.

The matrix of servers and the components share this format, how pytest runs, and how a table gets into a page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.support.debian import Unavailable

HOME = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run on one subject gave: its full version, the date, the counts of tests, and the names that failed."""

    subject: str
    version: str
    date: str
    passed: int
    skipped: int
    failed: tuple[str, ...]
    seconds: int


def run_tests(
    subject: str, program: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run pytest with arguments and return its outcome. Raises Unavailable if it ends without a report.

    ``program`` is the name of which the run prints the version.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, began = Path(folder) / "report.xml", time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider", "-m", "",
             f"--junitxml={report}"],
            cwd=HOME, env={**os.environ, **(environment or {})}, check=False, stdout=subprocess.PIPE, text=True,
        )
        print(done.stdout, flush=True)
        if not report.exists():
            raise Unavailable(f"pytest ended with {done.returncode} and without a report")
        suite = ET.parse(report).getroot()[0]  # noqa: S314 - pytest wrote it
        failed = sorted(
            f"{case.get('classname')}::{case.get('name')}" for case in suite
            if case.find("failure") is not None or case.find("error") is not None
        )
    tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    version = re.search(rf"^{re.escape(program)} (\S+)$", done.stdout, re.MULTILINE)
    return Outcome(
        subject, version[1] if version else "did not start", datetime.now(UTC).date().isoformat(),
        tests - skipped - len(failed), skipped, tuple(failed), round(time.monotonic() - began),
    )


def read_outcomes(file: Path) -> dict[str, Outcome]:
    """Return the newest outcome of each subject, by its name."""
    entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return {entry["subject"]: Outcome(**{**entry, "failed": tuple(entry["failed"])}) for entry in entries}


def save_outcomes(file: Path, results: Mapping[str, Outcome], order: Iterable[str]) -> None:
    """Save the outcomes in an order of subjects; those of others are dropped."""
    entries = [asdict(results[subject]) for subject in order if subject in results]
    file.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def row_of(cells: Sequence[str], result: Outcome | None) -> str:
    """Return a row of a table in Markdown: ``cells``, then version, date and counts, or that it was not run."""
    if result is None:
        return f"| {' | '.join([*cells, 'not run'])} | | | | |"
    counts = map(str, (result.passed, len(result.failed), result.skipped))
    return f"| {' | '.join([*cells, result.version, result.date, *counts])} |"


def replace_block(page: Path, begin: str, end: str, block: str) -> None:
    """Replace what is between two lines of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(before + begin + block + end + after, encoding="utf-8")
