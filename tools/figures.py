"""The figures of docs/concepts.md and the traces of docs/window.html: ``python -m tools.figures`` writes them.

Both are drawn from ``window_traces``, whose results are those of the executable specification. Guarantee:
``tests/unit/tools/test_figures.py`` fails when a committed file is not what this module makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from tools.window_traces import Document, build_traces

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "window.html"
_START, _END = '<script id="traces" type="application/json">\n', "\n</script><!-- end of traces -->"
_WIDTH = 720
_INK, _PALE, _LINE = "#1f2937", "#6b7280", "#d1d5db"
_LOG, _MARK, _CHUNK, _KEPT, _LOST = "#1d4ed8", "#7c3aed", "#92400e", "#047857", "#b91c1c"
_BAND, _PAPER = "#f3effd", "#ffffff"


class Drawing:
    """An SVG of a fixed width with a white background, so that it is readable in a dark page, too."""

    def __init__(self, height: int, title: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
            f'font-size="13" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="{_PAPER}"/>',
        ]

    def text(self, x: float, y: float, text: str, *, fill: str = _INK, anchor: str = "start", weight: str = "normal",
             struck: bool = False) -> None:
        """Write a text with its baseline at ``y``."""
        line = ' text-decoration="line-through"' if struck else ""
        self._lines.append(f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}"'
                           f'{line}>{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, *, stroke: str = _LINE, fill: str = _PAPER) -> None:
        """Draw a rectangle with round corners."""
        self._lines.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" '
                           f'stroke="{stroke}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, *, stroke: str = _PALE, dashed: bool = False) -> None:
        """Draw a line."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._lines.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}"{dash}/>')

    def arrow(self, x: float, y1: float, y2: float) -> None:
        """Draw an arrow downwards."""
        self.line(x, y1, x, y2)
        self._lines.append(f'<path d="M{x - 4:g} {y2 - 6:g} L{x:g} {y2:g} L{x + 4:g} {y2 - 6:g}" fill="none" '
                           f'stroke="{_PALE}"/>')

    def dot(self, x: float, y: float, fill: str) -> None:
        """Draw a dot."""
        self._lines.append(f'<circle cx="{x:g}" cy="{y:g}" r="5" fill="{fill}"/>')

    def svg(self) -> str:
        """Return the file's text."""
        return "\n".join([*self._lines, "</svg>", ""])


def draw_window(trace: Document, title: str) -> str:
    """Return the figure of one window: the log with its positions, the chunk below it, and what is emitted."""
    drawing, steps = Drawing(330, title), [step for step in trace["steps"] if step["kind"] != "start"]
    gap = (_WIDTH - 180) / max(len(steps) - 1, 1)
    places = {number: 100 + number * gap for number in range(len(steps))}
    kinds = [step["kind"] for step in steps]
    low, high, read = (places[kinds.index(kind)] for kind in ("low", "high", "read"))
    drawing.box(low, 20, high - low, 104, stroke=_BAND, fill=_BAND)
    drawing.text((low + high) / 2, 36, "window", fill=_MARK, anchor="middle")
    drawing.text(16, 92, "log", weight="bold")
    drawing.line(60, 88, _WIDTH - 20, 88)
    for number, step in enumerate(steps):
        _draw_moment(drawing, places[number], step)
    drawing.line(read, 106, read, 150, stroke=_CHUNK, dashed=True)
    drawing.text(16, 172, "chunk", weight="bold")
    drawing.text(16, 250, "result", weight="bold")
    for number, verdict in enumerate(trace["verdicts"]):
        _draw_verdict(drawing, 90 + number * 212, verdict)
    kept = " → ".join(f"{event['position']} {event['op']} {event['key']}" for event in trace["events"])
    drawing.text(16, 312, "events", weight="bold")
    drawing.text(90, 312, kept)
    return drawing.svg()


def _draw_moment(drawing: Drawing, x: float, step: Document) -> None:
    kind = step["kind"]
    if kind == "write":
        label, color = f"{step['verb']} {step['key']}", _LOG
    else:
        label = {"low": "low", "high": "high", "read": "chunk read", "visible": "update 2 visible"}[kind]
        color = {"read": _CHUNK, "visible": _LOG}.get(kind, _MARK)
    drawing.text(x, 62, label, fill=color, anchor="middle")
    if step["position"]:
        drawing.dot(x, 88, color)
        drawing.text(x, 114, step["position"], fill=_PALE, anchor="middle")
    else:
        drawing.line(x, 72, x, 104, stroke=color, dashed=True)


def _draw_verdict(drawing: Drawing, x: float, verdict: Document) -> None:
    color = _LOST if verdict["verdict"] == "evicted" else _KEPT
    drawing.box(x, 152, 196, 32, stroke=_CHUNK)
    drawing.text(x + 98, 173, _row_text(verdict), anchor="middle", struck=verdict["verdict"] == "evicted")
    drawing.arrow(x + 98, 188, 224)
    drawing.box(x, 228, 196, 50, stroke=color)
    first, second = (
        ("evicted", f"by {' and '.join(verdict['by'])}") if verdict["verdict"] == "evicted"
        else (verdict["verdict"], f"at {verdict['at']}")
    )
    drawing.text(x + 98, 248, first, fill=color, anchor="middle", weight="bold")
    drawing.text(x + 98, 268, second, fill=color, anchor="middle")


def draw_path(trace: Document, frontiers: Iterable[int], title: str) -> str:
    """Return the figure of a trace's batches: what landed in each, its events, and state with its frontier.

    ``frontiers`` are the batches after which a step of state ends.
    """
    landed = _landed_lines(trace)
    drawing, width = Drawing(424, title), 198
    places = {batch: 90 + (batch - 1) * (width + 14) for batch in landed}
    for y, name in ((24, "landing"), (182, "events"), (330, "frontier")):
        drawing.text(12, y + 20, name, weight="bold")
    for batch, x in places.items():
        drawing.box(x, 24, width, 122)
        drawing.text(x + 10, 44, f"batch {batch}", weight="bold")
        _write_lines(drawing, x + 10, 66, landed[batch])
        drawing.arrow(x + width / 2, 150, 178)
        drawing.box(x, 182, width, 112)
        _write_lines(drawing, x + 10, 204, _event_lines(trace, batch))
    before = 0
    for until in frontiers:
        x, end = places[before + 1], places[until] + width
        for batch in range(before + 1, until + 1):
            drawing.arrow(places[batch] + width / 2, 298, 326)
        newest = [event for event in trace["events"] if event["batch"] <= until][-1]
        drawing.box(x, 330, end - x, 76)
        drawing.text(x + 10, 350, f"step up to batch {until}", weight="bold")
        drawing.text(x + 10, 371, f"position {newest['position']}", fill=_PALE)
        drawing.text(x + 10, 393, _state_text(trace, until), fill=_KEPT)
        before = until
    return drawing.svg()


def _landed_lines(trace: Document) -> dict[int, list[tuple[str, str, bool]]]:
    lines: dict[int, list[tuple[str, str, bool]]] = {}
    for step in trace["steps"]:
        found = lines.setdefault(step["batch"], [])
        if step["kind"] == "write":
            found.append((f"{step['position']} {step['verb']} {step['key']}", _LOG, False))
        elif step["kind"] in ("low", "high"):
            found.append((f"{step['position']} {step['kind']} watermark", _MARK, False))
        elif step["kind"] == "read":
            keys = ", ".join(verdict["key"] for verdict in trace["verdicts"])
            found.append((f"chunk rows {keys}", _CHUNK, False))
    return lines


def _event_lines(trace: Document, batch: int) -> list[tuple[str, str, bool]]:
    lines = [
        (f"{event['position']} {event['op']} {event['key']} {_values(event['after'])}",
         _LOG if event["origin"] == "log" else _CHUNK, False)
        for event in trace["events"] if event["batch"] == batch
    ]
    closes = any(step["kind"] == "high" and step["batch"] == batch for step in trace["steps"])
    gone = [verdict for verdict in trace["verdicts"] if closes and verdict["verdict"] == "evicted"]
    return lines + [(f"r {verdict['key']} {_values(verdict['row'])}", _LOST, True) for verdict in gone]


def _state_text(trace: Document, batch: int) -> str:
    rows: dict[str, str] = {}
    for event in trace["events"]:
        if event["batch"] <= batch:
            rows[event["key"]] = _values(event["after"])
    return " · ".join(f"{key} {values}" for key, values in sorted(rows.items()))


def _write_lines(drawing: Drawing, x: float, y: float, lines: Iterable[tuple[str, str, bool]]) -> None:
    for number, (text, color, struck) in enumerate(lines):
        drawing.text(x, y + number * 20, text, fill=color, struck=struck)


def _row_text(verdict: Document) -> str:
    return f"{verdict['key']} {_values(verdict['row'])}"


def _values(row: dict[str, Any] | None) -> str:
    return " ".join(map(str, (row or {}).values()))


def build_files() -> dict[Path, str]:
    """Return the text of every file that this module makes."""
    traces = build_traces()
    by_name = {trace["name"]: trace for trace in traces}
    figures = DOCS / "figures"
    files = {
        figures / "window.svg": draw_window(by_name["update"], "A chunk window with one evicted row"),
        figures / "visibility.svg": draw_window(by_name["late"], "A row that is in the log before it is visible"),
        figures / "path.svg": draw_path(by_name["update"], (1, 3), "Batches from landing to events and the frontier"),
    }
    if PAGE.exists():
        files[PAGE] = replace_traces(PAGE.read_text(encoding="utf-8"), traces)
    return files


def replace_traces(page: str, traces: list[Document]) -> str:
    """Return the page with the traces between its two marks."""
    before, _, rest = page.partition(_START)
    _, _, after = rest.partition(_END)
    lines = ",\n".join(json.dumps(trace, sort_keys=True).replace("</", "<\\/") for trace in traces)
    return f"{before}{_START}[{lines}]{_END}{after}"


if __name__ == "__main__":
    for file, text in build_files().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
