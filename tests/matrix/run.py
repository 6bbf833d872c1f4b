"""Run the conformance suite once on each server of the matrix, save the result, and write it to ``docs/limits.md``.

``./spark-submit.sh tests --matrix`` runs it, by hand: a few minutes for each server. Names of servers, as arguments,
restrict the run to them; the others keep their last result. Exits with 1 if a test failed, or none ran.
"""

from __future__ import annotations

import sys

from tests.matrix.results import RESULTS, write_page
from tests.matrix.servers import SERVERS, MatrixServer
from tests.support.debian import Unavailable
from tests.support.outcomes import Outcome, read_outcomes, run_tests, save_outcomes


def run_server(server: MatrixServer) -> Outcome:
    """Run the suite on one server; return what came of it. Raises Unavailable if it cannot be fetched."""
    others = " and not postgres15" if server.kind == "postgres" else ""
    arguments = ["tests/conformance", "-k", server.kind + others]
    return run_tests(server.title, server.title.split()[0], arguments, server.provide())


def main() -> int:
    """Run the servers named as arguments, or all; return the exit code."""
    chosen = [s for s in SERVERS if s.title in sys.argv[1:]] if sys.argv[1:] else list(SERVERS)
    if unknown := set(sys.argv[1:]) - {s.title for s in SERVERS}:
        print(f"not in the matrix: {', '.join(sorted(unknown))}. Next: use {', '.join(s.title for s in SERVERS)}",
              file=sys.stderr)
        return 64
    results = read_outcomes(RESULTS)
    for server in chosen:
        print(f"== {server.title}", flush=True)
        try:
            results[server.title] = run_server(server)
        except Unavailable as why:
            print(f"{server.title} cannot be run: {why}", file=sys.stderr)
            results.pop(server.title, None)
        save_outcomes(RESULTS, results, [s.title for s in SERVERS])
    write_page(results)
    ran = [results.get(server.title) for server in chosen]
    return 0 if all(result and result.passed and not result.failed for result in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
