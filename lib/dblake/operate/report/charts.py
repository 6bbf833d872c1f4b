"""Plots as inline SVG that stretch to any width, with axes as HTML, so that their text keeps its size.

Place: between the figures and the sections of the page. The drawing has one unit of width per bucket and
``_HEIGHT`` units of height; lines keep their thickness however it is stretched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dblake.operate.report.markup import Html, join, tag
from dblake.operate.report.scales import format_count, round_up

_HEIGHT = 200
_SPARK_COLUMNS = 96
_LEAST_BAND = 0.003
_LEAST_BANDS = {"drop": 0.025, "spike": 0.025}
_COMMON_SHARE, _TOWERING = 0.98, 4.0
"""Peaks of more than ``_TOWERING`` times what this share of the filled buckets has are cut."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of buckets to point out: ``kind`` is a class of the style sheet, ``text`` explains it."""

    kind: str
    begin: float
    end: float
    text: str


def stacked_plot(
    series: Mapping[str, np.ndarray], ticks: Sequence[tuple[float, str]], marks: Iterable[Mark], *, per_minute: float,
    label: str, size: str = "",
) -> Html:
    """Return areas of counts per bucket, stacked in the given order; ``per_minute`` is a bucket's width in minutes.

    Rare peaks far above all else are cut, and the axis names the highest.
    """
    sums = np.cumsum(np.stack(list(series.values())), axis=0) / per_minute
    columns, greatest = sums.shape[1], float(sums[-1].max(initial=0))
    top = _choose_top(sums[-1])
    peak = f", peak {format_count(greatest)}" if greatest > top else ""
    heights = sums / np.maximum(sums[-1], top)
    areas = [
        tag("path", d=_area(heights[number]), cls=f"area {name}")
        for number, name in reversed(list(enumerate(series)))
    ]
    axis = join(tag("span", f"{format_count(top)}/min{peak}", cls="top"),
                tag("span", f"{format_count(top / 2)}", cls="half") if size else None)
    return _plot(columns, [*_bands(marks, columns), *areas], ticks, axis, label, size)


def _choose_top(values: np.ndarray) -> float:
    """Return where the axis of counts ends: beyond the greatest, or beyond all but the rare ones if these tower."""
    greatest = float(values.max(initial=0))
    filled = values[values > 0]
    common = float(np.quantile(filled, _COMMON_SHARE)) if len(filled) else 0.0
    return round_up(1.5 * common if greatest > _TOWERING * common else greatest)


def line_plot(
    lines: Mapping[str, np.ndarray], ticks: Sequence[tuple[float, str]], levels: Sequence[tuple[float, str]],
    limit: float | None, *, label: str, size: str = "tall",
) -> Html:
    """Return lines through values from 0 to 1, NaN being none; ``levels`` label the y axis, ``limit`` is a dashed line.

    A line connects the values on both sides of a gap.
    """
    columns = max(len(values) for values in lines.values())
    drawn = [tag("line", x1=0, x2=columns, y1=_y(height), y2=_y(height), cls="level") for height, _ in levels[1:]]
    if limit is not None:
        drawn.append(tag("line", x1=0, x2=columns, y1=_y(limit), y2=_y(limit), cls="limit"))
    for name, values in lines.items():
        filled = np.flatnonzero(~np.isnan(values))
        points = [(int(n) + 0.5, _y(float(values[n]))) for n in filled]
        path = "".join(f"{'L' if number else 'M'}{x} {y}" for number, (x, y) in enumerate(points))
        drawn.append(tag("path", d=path, cls=f"line {name}"))
        if len(points) <= 120:
            drawn.append(tag("path", d="".join(f"M{x} {y}h0" for x, y in points), cls=f"dots {name}"))
    axis = join(*(tag("span", text, cls="level", style=f"top:{100 - 100 * height:.2f}%") for height, text in levels))
    return _plot(columns, drawn, ticks, axis, label, f"{size} wide-axis")


def sparkline(values: np.ndarray, marks: Iterable[Mark] = ()) -> Html:
    """Return a small area without axes; of many buckets each column shows the highest."""
    marks = list(marks)
    columns = len(values)
    step = -(-columns // _SPARK_COLUMNS)
    padded = np.pad(values, (0, -columns % step)).reshape(-1, step).max(axis=1)
    top = float(padded.max(initial=0)) or 1.0
    scaled_marks = [Mark(mark.kind, mark.begin / step, mark.end / step, mark.text) for mark in marks]
    return _svg(len(padded), [*_bands(scaled_marks, len(padded)), tag("path", d=_area(padded / top), cls="area spark")],
                cls="spark")


def bar(parts: Sequence[tuple[str, float, str]], *, cls: str = "bar") -> Html:
    """Return a horizontal bar of parts, each with its class, its share from 0 to 1, and its title."""
    return tag("div", *(
        tag("i", cls=kind, style=f"width:{100 * share:.2f}%", title=title) for kind, share, title in parts if share > 0
    ), cls=cls)


def timeline(begin: float, end: float, kind: str, title: str) -> Html:
    """Return a bar from one place to another of a line from 0 to 1, at least a little wide."""
    left = min(max(begin, 0.0), 1.0)
    width = max(min(end, 1.0) - left, 0.004)
    return tag("div", tag("i", cls=kind, style=f"left:{100 * min(left, 0.996):.2f}%;width:{100 * width:.2f}%"),
               cls="timeline", title=title)


def _plot(
    columns: int, drawn: Sequence[Html], ticks: Sequence[tuple[float, str]], axis: Html, label: str, size: str
) -> Html:
    grid = [tag("line", x1=share * columns, x2=share * columns, y1=0, y2=_HEIGHT, cls="grid") for share, _ in ticks]
    times = tag("div", *(
        tag("span", text, style=f"left:{100 * share:.2f}%", cls=_side(share)) for share, text in ticks
    ), cls="times")
    return tag("div", tag("div", _svg(columns, [*grid, *drawn], label=label), axis, cls="canvas"), times,
               cls=f"plot {size}".strip())


def _side(share: float) -> str | None:
    """Return the class of a label that would leave the plot."""
    if share < 0.04:
        return "first"
    return "last" if share > 0.94 else None


def _svg(columns: int, drawn: Sequence[Html], *, label: str | None = None, cls: str | None = None) -> Html:
    hidden = None if label else "true"
    return tag("svg", *drawn, viewBox=f"0 0 {columns} {_HEIGHT}", preserveAspectRatio="none",
               role="img" if label else None, aria_label=label, aria_hidden=hidden, cls=cls)


def _bands(marks: Iterable[Mark], columns: int) -> list[Html]:
    """Return a rectangle for each mark, around its middle and at least so wide that it is seen."""
    bands = []
    for mark in marks:
        width = max(mark.end - mark.begin, columns * _LEAST_BANDS.get(mark.kind, _LEAST_BAND))
        left = min(max((mark.begin + mark.end - width) / 2, 0), columns - width)
        bands.append(tag("rect", tag("title", mark.text), x=round(left, 2), y=0, width=round(width, 2), height=_HEIGHT,
                         cls=f"band {mark.kind}"))
    return bands


def _area(heights: np.ndarray) -> str:
    """Return the path of a stepped area above the base line, for heights from 0 to 1."""
    tops = _HEIGHT - np.rint(heights * _HEIGHT).astype(np.int64)
    # A bucket with anything in it is visible.
    tops = np.where((tops == _HEIGHT) & (heights > 0), _HEIGHT - 1, tops)
    changes = np.flatnonzero(np.diff(tops, prepend=_HEIGHT))
    steps = "".join(f"H{column}V{top}" for column, top in zip(changes.tolist(), tops[changes].tolist(), strict=True))
    return f"M0 {_HEIGHT}{steps}H{len(tops)}V{_HEIGHT}Z"


def _y(height: float) -> float:
    return round((1 - height) * _HEIGHT, 1)
