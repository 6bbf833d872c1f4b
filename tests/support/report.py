"""The output of a test run: server versions, skips by reason, and with ``--by-area`` one line per folder of tests.

``note_version`` adds a running server to the summary. A test that raises ``debian.Unavailable``, in a fixture
or its body, is skipped with that reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pytest

from tests.support.debian import Unavailable

_OUTCOMES = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")
_DEEP = (("spark",), ("integration",))
"""The folders that take minutes: each folder in them gets a line."""
_versions: dict[str, set[str]] = {}


def note_version(title: str, version: str) -> None:
    """Add the version of a server or runtime to the summary."""
    _versions.setdefault(title, set()).add(version)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--by-area", action="store_true", help="print a line per folder of tests/, not a dot per test")


@pytest.hookimpl(trylast=True)  # after the terminal's own, which makes the reporter
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("--by-area") and reporter is not None:
        reporter.showfspath = False
        reporter._show_progress_info = False
        config.pluginmanager.register(ByArea(reporter), "dblake-by-area")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    return (yield from _skipping())


def _skipping() -> Generator[None]:
    try:
        return (yield)
    except Unavailable as reason:
        pytest.skip(str(reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _versions:
        terminalreporter.section("versions")
        for title, versions in sorted(_versions.items()):
            terminalreporter.write_line(f"{title} {', '.join(sorted(versions))}")
    skipped = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.section("skipped, by reason")
        for reason, number in skipped.most_common():
            terminalreporter.write_line(f"{number:5}  {reason}")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@dataclass
class _Area:
    unfinished: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)


class ByArea:
    """Print a line per area when its last test has finished, and each failure immediately."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._areas: dict[str, _Area] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._areas.setdefault(area_of(item.nodeid), _Area()).unfinished += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> Generator[None, tuple[str, object, object], tuple[str, object, object]]:
        category, _, _ = yield
        # Without a letter and a word, pytest counts a test and prints nothing.
        return category, "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        area = self._areas[area_of(report.nodeid)]
        area.seconds += report.duration
        category = self._reporter.config.hook.pytest_report_teststatus(report=report, config=self._reporter.config)[0]
        if category:
            area.outcomes[category] += 1
        if category in ("failed", "error"):
            self._reporter.write_line(f"{category}: {report.nodeid}")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        name = area_of(nodeid)
        area = self._areas[name]
        area.unfinished -= 1
        if not area.unfinished:
            counts = ", ".join(f"{area.outcomes[outcome]} {outcome}" for outcome in _OUTCOMES if area.outcomes[outcome])
            self._reporter.write_line(f"{name}: {counts} in {area.seconds:.0f} s")


def area_of(nodeid: str) -> str:
    """Return a test's folder below tests/, as deep as its package or server; ``tests`` for a test without one."""
    folders = PurePosixPath(nodeid.split("::", maxsplit=1)[0]).parent.parts
    return "/".join(folders[1:3]) if folders[1:2] in _DEEP else "".join(folders[1:2]) or "tests"
