"""Run the conformance suite once on each server of the matrix, save the result, and write it to ``docs/limits.md``.

``./spark-submit.sh tests --matrix`` runs it, by hand: a few minutes for each server. Names of servers, as arguments,
restrict the run to them; the others keep their last result. Exits with 1 if a test failed, or none ran.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

from tests.matrix.results import Outcome, read_results, save_results, write_page
from tests.matrix.servers import SERVERS, MatrixServer
from tests.support.debian import Unavailable

_HOME = Path(__file__).parents[2]


def run_server(server: MatrixServer) -> Outcome:
    """Run the suite on one server; return what came of it. Raises Unavailable if it cannot be fetched."""
    environment = {**os.environ, **server.provide()}
    others = " and not postgres15" if server.kind == "postgres" else ""
    with tempfile.TemporaryDirectory() as folder:
        report, began = Path(folder) / "report.xml", time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/conformance", "-q", "-p", "no:cacheprovider", "-m", "",
             "-k", server.kind + others, f"--junitxml={report}"],
            cwd=_HOME, env=environment, check=False, stdout=subprocess.PIPE, text=True,
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
    version = re.search(rf"^{server.title.split()[0]} (\S+)$", done.stdout, re.MULTILINE)
    return Outcome(
        server.title, version[1] if version else "did not start", datetime.now(UTC).date().isoformat(),
        tests - skipped - len(failed), skipped, tuple(failed), round(time.monotonic() - began),
    )


def main() -> int:
    """Run the servers named as arguments, or all; return the exit code."""
    chosen = [s for s in SERVERS if s.title in sys.argv[1:]] if sys.argv[1:] else list(SERVERS)
    if unknown := set(sys.argv[1:]) - {s.title for s in SERVERS}:
        print(f"not in the matrix: {', '.join(sorted(unknown))}. Next: use {', '.join(s.title for s in SERVERS)}",
              file=sys.stderr)
        return 64
    results = read_results()
    for server in chosen:
        print(f"== {server.title}", flush=True)
        try:
            results[server.title] = run_server(server)
        except Unavailable as why:
            print(f"{server.title} cannot be run: {why}", file=sys.stderr)
            results.pop(server.title, None)
        save_results(results)
    write_page(results)
    ran = [results.get(server.title) for server in chosen]
    return 0 if all(result and result.passed and not result.failed for result in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
