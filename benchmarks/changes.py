"""Benchmark catching up by consolidated changes and by the log, by the number of events between two points.

Consolidated changes come from events or as the difference of two states; the log is what a subscription delivers. The
Databus paper compares the two in its section on bootstrap.

``python -m benchmarks.changes --rows 200000 --plot docs/changes.svg`` writes the figure of docs/points.md. Updates draw
their keys evenly from all rows, so the states to compare stay as large while the events between them grow. Needs no
JVM and no database.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.folded_events import SOURCE, FoldedEvents
from dblake.base.lake.layout import Paths
from dblake.serve.changes.consolidate import consolidate
from dblake.serve.changes.differences import Way
from dblake.serve.changes.span import Span
from dblake.serve.consume import open_subscription
from dblake.transform.state.run import run_state
from tests.support.readings import NO_SPARK

TABLE = "public.accounts"
SHARES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 4.0)
"""Events between the two points, as shares of the table's rows."""
_BATCH_ROWS = 20_000
_LINES = {
    "log": ("#15803d", "the log, by a subscription"), "events": ("#c2410c", "consolidated, from events"),
    "states": ("#1d4ed8", "consolidated, difference of two states"),
}


@dataclass(frozen=True)
class Point:
    """Seconds for one span, by each way; of ``events`` and ``states``, ``chosen`` is estimated cheaper."""

    rows: int
    updates: int
    lines: int
    log: float
    events: float
    states: float
    chosen: str


def measure(rows: int, folder: Path) -> list[Point]:
    """Create a table with ``rows`` rows, update it more and more, and compare its start with each stage."""
    paths, draw = Paths(str(folder), SOURCE), np.random.default_rng(7)
    lake = FoldedEvents(paths, [TABLE])
    for first in range(0, rows, _BATCH_ROWS):
        lake.append([TABLE], np.arange(first, min(first + _BATCH_ROWS, rows)), "c")
    _fold(paths)
    start = -(-rows // _BATCH_ROWS)
    batches, updates, points = start, 0, []
    for share in SHARES:
        while updates < round(share * rows):
            count = min(_BATCH_ROWS, round(share * rows) - updates)
            lake.append([TABLE], draw.choice(rows, count, replace=False), "u")
            batches, updates = batches + 1, updates + count
        _fold(paths)
        ends = f"1/{1000 * start}", f"1/{1000 * batches}"
        seconds = {way: _shortest(partial(_consolidate, paths, *ends, way)) for way in Way}
        chosen = consolidate(Span(paths, *ends), TABLE)
        log = _shortest(partial(_replay, paths, ends[0]))
        points.append(Point(rows, updates, len(chosen.op), log, seconds[Way.EVENTS], seconds[Way.STATES], chosen.way))
    return points


def _fold(paths: Paths) -> None:
    for result in run_state(NO_SPARK, paths, parallel=1):
        assert result.error is None, str(result.error)


def _consolidate(paths: Paths, start: str, end: str, way: Way) -> None:
    """Return the changes between two points, from resolving the points to the last line."""
    consolidate(Span(paths, start, end), TABLE, way)


def _replay(paths: Paths, start: str) -> None:
    """Take every event after a point, as a subscriber."""
    with open_subscription([paths], start=start, until_caught_up=True) as subscription:
        for transaction in subscription:
            for _ in transaction.events:
                pass


def _shortest(run: Callable[[], None]) -> float:
    """Return the seconds of the shortest of three runs."""
    best = math.inf
    for _ in range(3):
        began = time.monotonic()
        run()
        best = min(best, time.monotonic() - began)
    return round(best, 3)


def plot(points: list[Point]) -> str:
    """Return the figure as SVG: seconds of all three by events per row, both axes logarithmic."""
    width, height, left, bottom = 640, 360, 60, 50
    xs = [math.log10(point.updates / point.rows) for point in points]
    ys = [math.log10(value) for point in points for value in (point.log, point.events, point.states)]
    low, high = math.floor(min(ys) * 2) / 2, math.ceil(max(ys) * 2) / 2

    def x(value: float) -> float:
        return round(left + (value - xs[0]) / (xs[-1] - xs[0]) * (width - left - 20), 1)

    def y(value: float) -> float:
        return round(height - bottom - (value - low) / (high - low) * (height - bottom - 20), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="12">', f'<rect width="{width}" height="{height}" fill="white"/>']
    for point, at in zip(points, xs, strict=True):
        parts.append(f'<line x1="{x(at)}" x2="{x(at)}" y1="20" y2="{height - bottom}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{x(at)}" y="{height - bottom + 16}" text-anchor="middle">'
                     f'{point.updates / point.rows:g}</text>')
    steps = round((high - low) * 2)
    for step in range(steps + 1):
        value = low + step / 2
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(value)}" y2="{y(value)}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4}" text-anchor="end">{10 ** value:.2g} s</text>')
    for number, (name, (color, title)) in enumerate(_LINES.items()):
        line = [(x(at), y(math.log10(getattr(point, name)))) for point, at in zip(points, xs, strict=True)]
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" '
                     f'points="{" ".join(f"{a},{b}" for a, b in line)}"/>')
        parts += [f'<circle cx="{a}" cy="{b}" r="3" fill="{color}"/>' for a, b in line]
        parts.append(f'<text x="{left + 10}" y="{34 + 16 * number}" fill="{color}">{title}</text>')
    parts.append(f'<text x="{(left + width) / 2}" y="{height - 12}" text-anchor="middle">events between the points, '
                 f'per row of the table ({points[0].rows:,} rows)</text></svg>')
    return "\n".join(parts) + "\n"


def main() -> None:
    """Measure, print a table and one JSON line, and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table; default 200,000")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the figure as SVG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dblake-changes-") as folder:
        points = measure(options.rows, Path(folder))
    print("| events between | keys that differ | the log, s | from events, s | difference of states, s | chosen |")
    print("| --: | --: | --: | --: | --: | --- |")
    for point in points:
        seconds = f"{point.log} | {point.events} | {point.states}"
        print(f"| {point.updates:,} | {point.lines:,} | {seconds} | {point.chosen} |")
    print(json.dumps([asdict(point) for point in points]))
    if options.plot:
        options.plot.write_text(plot(points), encoding="utf-8")


if __name__ == "__main__":
    main()
