"""The page in a real browser: at a phone's and a desktop's width, light and dark, nothing is cut, pale or missing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dblake.base.lake.layout import Paths
from dblake.ingest.capture.dump_queue import queue_dump
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.table_life import LifeState, TableLife, save_life
from dblake.operate.report.build import Limits, build_report
from dblake.operate.report.page import render_page
from dblake.operate.status.report import SourceReport, build_status
from tests.support.browser import READABILITY, open_page
from tests.support.busy_lake import build_busy_lake, full_minute

pytestmark = pytest.mark.slow  # the first use downloads the browser

#: What a reader notices.
MEASURE = READABILITY + """
const root = document.documentElement;
const crossing = [...document.querySelectorAll('.times')].flatMap(times => {
  const spans = [...times.children].filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect());
  return spans.slice(1).filter((rect, n) => rect.left < spans[n].right + 2).length ? [times.textContent] : [];
});
return {
  scroll: root.scrollWidth, width: innerWidth, dark: matchMedia('(prefers-color-scheme: dark)').matches,
  background: light(behind(document.body)), text: document.body.innerText,
  pale: findPale(), wide: findWide(), crossing,
  plots: [...document.querySelectorAll('figure svg')].map(e => [e.clientWidth, e.clientHeight]),
  lines: [...document.querySelectorAll('#lag path.line')].map(e => {
    const color = getComputedStyle(e).stroke, key = document.querySelector('#lag .key.' + e.classList[1]);
    const [a, b] = [light(color), light(behind(e.closest('.card')))].sort((x, y) => y - x);
    return [e.classList[1], color, getComputedStyle(key).backgroundColor, (a + 0.05) / (b + 0.05)];
  }),
  bands: document.querySelectorAll('figure .band.drop, figure .band.spike').length,
};
"""


def crowded(folder: Path) -> str:
    """Return the page of a thousand tables, with a drop, a spike, problems, dumps and names as long as can be."""
    now, random = full_minute(datetime.now(UTC)), np.random.default_rng(1)
    counts = {f"public.t{number:04}": random.poisson(0.05, 600) for number in range(996)}
    counts |= {"public." + "orders_of_all_regions_" * 3: random.poisson(40, 600), "public.customers":
               random.poisson(25, 600), "\"Größe\".\"<b>ß</b>\"": random.poisson(5, 600)}
    counts["public.customers"][400:440] = 0
    counts["public.t0003"][500] = 5000
    counts["public.t0007"][:] = 0
    store = FileProgress(folder / "progress" / "shop")
    build_busy_lake(folder / "warehouse", store, counts, now, verified=30)
    for table, reason in (("public.t0001", "no primary key"), ("public." + "x" * 63, "row_security: " + "y" * 90)):
        save_life(store, TableLife(table, LifeState.SUSPENDED, now.isoformat(), "1/1", reason=reason))
    queue_dump(store, ["public.t0001", "public.t0002"])
    return page_of(folder)


def empty(folder: Path) -> str:
    return page_of(folder)


def page_of(folder: Path) -> str:
    paths, store = Paths(str(folder / "warehouse"), "shop"), FileProgress(folder / "progress" / "shop")
    document = build_status(paths, store, SourceReport(), late_seconds=120, max_verification_age_seconds=3600)
    return render_page(build_report(paths, document, timedelta(days=1), datetime.now(UTC), Limits(120, 3600)))


@pytest.fixture(scope="module", params=[crowded, empty])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    make: Callable[[Path], str] = request.param
    return make(tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_is_readable(page: str, tmp_path: Path, width: int, dark: bool) -> None:
    found: dict[str, Any] = open_page(page, MEASURE, tmp_path, width=width, dark=dark)
    assert (found["width"], found["dark"], found["background"] < 0.1) == (width, dark, dark)
    assert found["wide"] == []
    assert found["scroll"] <= width
    assert found["pale"] == []
    assert found["crossing"] == []
    assert all(across > 250 and height > 50 for across, height in found["plots"])
    texts = ["No events yet.", "run capture"]
    if found["plots"]:
        texts = ["2 open problems", "2 tables with drops or spikes", "public.customers", "drop ", "spike ",
                 "<b>ß</b>", "row_security", "Lag", "Dumps", "Verification", "dead letters".upper()]
        assert found["bands"] >= 2
        assert [name for name, *_ in found["lines"]] == ["landing", "events", "state"]
        assert len({color for _, color, *_ in found["lines"]}) == 3
        assert all(color == key and contrast >= 3 for _, color, key, contrast in found["lines"])
    missing = [text for text in texts if text.lower() not in found["text"].lower()]
    assert missing == []
