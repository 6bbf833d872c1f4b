"""The job ``report``: what it counts, and that its page holds all of it and nothing else."""

from __future__ import annotations

import re
import stat
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from dblake.base.core.errors import UsageError
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, record_batch
from dblake.base.lake.tables import create_table
from dblake.ingest.capture.dump_queue import queue_dump
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.table_life import LifeState, TableLife, save_life
from dblake.operate.report.build import Limits, Report, build_report, rank_tables
from dblake.operate.report.markup import escape
from dblake.operate.report.operations import count_operations
from dblake.operate.report.page import POLICY, render_page
from dblake.operate.status.report import SourceReport, build_status
from dblake.transform.events.schema import WINDOWS
from jobs.report import report
from tests.support.busy_lake import MINUTE, build_busy_lake, events_of, full_minute, land, reach_state
from tests.support.plain_lake import PlainLake

NOW = full_minute(datetime.now(UTC))
DAY = 1440
CONF = """
warehouse: ./warehouse
progress: file:./progress
source: {name: shop, type: postgres, host: 127.0.0.1, port: 1, database: shop, user: dblake,
         password: "${env:NONE}", tables: ["public.*"]}
"""


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the test's time: the job and status read the real one."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", full_minute(datetime.now(UTC)))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(CONF)
    return path


def store_of(folder: Path) -> FileProgress:
    return FileProgress(folder / "progress" / "shop")


def build(folder: Path) -> Report:
    paths = Paths(str(folder / "warehouse"), "shop")
    document = build_status(paths, store_of(folder), SourceReport(), late_seconds=120)
    return build_report(paths, document, timedelta(days=1), NOW, Limits(120, None))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(report, [*arguments, "--offline"])


class Texts(HTMLParser):
    """The text, elements and addresses of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.elements, self.addresses = "", Counter[str](), list[str | None]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.addresses += [value for name, value in attrs if name in ("href", "src", "xlink:href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_counts_equal_events_by_table_and_minute(tmp_path: Path) -> None:
    """Dumped rows are no operations, and the past is counted apart from the period."""
    lake = PlainLake(tmp_path / "warehouse")
    random = np.random.default_rng(1)
    counts = {f"public.t{number}": random.poisson(2, 300) for number in range(5)}
    lake.append(events_of(counts, NOW), 1)
    lake.append(events_of({"public.t0": np.full(10, 1000)}, NOW, origin="dump", batch=2), 2)
    found = count_operations(lake.paths, timedelta(minutes=60), NOW, 5)
    assert found.tables == list(counts)
    assert (found.period.shown, found.period.past, found.period.end) == (60, 120, NOW)
    for row, per_minute in enumerate(counts.values()):
        assert found.totals[row].tolist() == per_minute[-180:].tolist()
        assert sum(kind[row] for kind in found.kinds.values()).tolist() == per_minute[-60:].tolist()
    # Of four operations in a row one is an insert, two are updates.
    events = int(sum(per_minute[-60:].sum() for per_minute in counts.values()))
    assert found.kinds["updates"].sum() == pytest.approx(events / 2, rel=0.1)


def test_wide_buckets_sum_up_minutes(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path / "warehouse")
    lake.append(events_of({"public.t": np.full(4 * DAY, 2)}, NOW), 1)
    found = count_operations(lake.paths, timedelta(days=3), NOW, 1)
    assert found.period.minutes == 5
    assert set(found.totals[0][1:-1].tolist()) == {10}


def test_truncate_is_marked(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path / "warehouse")
    events = events_of({"public.t": np.ones(30, np.int64)}, NOW)
    ops = pa.array(["t", *events["op"].to_pylist()[1:]], pa.string())
    lake.append(events.set_column(events.schema.get_field_index("op"), "op", ops), 1)
    found = count_operations(lake.paths, timedelta(minutes=30), NOW, 1)
    assert list(found.truncates) == [0] and len(found.truncates[0]) == 1
    assert found.totals.sum() == 29
    page = render_page(build(tmp_path))
    assert f"truncated at {NOW - 30 * MINUTE:%b %d %H:%M}" in page and 'class="band emptied"' in page


def test_rows_read_by_dumps_are_counted_by_minute(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path / "warehouse")
    lake.append(events_of({"public.t": np.ones(30, np.int64)}, NOW), 1)
    ages = {"closed": (90, 90, 600), "discarded": (90,)}
    rows = [
        {"chunk_id": f"{status}{age}", "table": "public.t", "rows_read": 1000, "status": status,
         "closed_at": NOW - timedelta(seconds=age)} for status, found in ages.items() for age in found
    ]
    create_table(lake.paths.windows, WINDOWS)
    write_deltalake(lake.paths.windows, pa.Table.from_pylist(rows, schema=WINDOWS), mode="append")
    dumped = build(tmp_path).dumped
    # The last bucket ends with NOW: 90 seconds before is the one before it.
    assert (dumped[-2], dumped[-10], dumped.sum()) == (2000, 1000, 3000)


def test_operations_before_reconciled_time_are_judged(tmp_path: Path) -> None:
    """A table that stopped is a drop up to where events are known; a stopped reconcile is none."""
    counts = {"public.busy": np.full(300, 50), "public.broken": np.full(300, 50)}
    counts["public.broken"][-60:] = 0
    end = NOW - timedelta(hours=2)
    lake = build_busy_lake(tmp_path / "warehouse", store_of(tmp_path), counts, end)
    land(lake.paths, 31, NOW, NOW)
    made = build(tmp_path)
    (row,) = made.episodes
    assert made.operations.tables[row] == "public.broken"
    (drop,) = made.episodes[row]
    assert drop.is_open and drop.end - drop.begin == pytest.approx(59, abs=1)
    assert rank_tables(made)[0] == row
    assert made.period.begins_at(made.period.past + made.known_until) == pytest.approx(end, abs=2 * MINUTE)
    record_batch(lake.paths.events, Application.reconcile("shop"), 31)
    assert len(build(tmp_path).episodes) == 2


def test_abnormal_tables_precede_active_ones(tmp_path: Path) -> None:
    counts = {name: np.full(300, rate) for name, rate in (("busy", 90), ("broken", 40), ("busier", 99), ("still", 0))}
    counts["broken"][200:230] = 0
    lake = PlainLake(tmp_path / "warehouse")
    lake.append(events_of(counts, NOW), 1)
    made = build(tmp_path)
    assert [made.operations.tables[row] for row in rank_tables(made)] == ["broken", "busier", "busy"]


def test_consolidated_events_are_not_judged(tmp_path: Path) -> None:
    counts = {"public.t": np.full(300, 50)}
    counts["public.t"][:150] = 1
    lake = PlainLake(tmp_path / "warehouse")
    lake.append(events_of({"public.t": counts["public.t"][:150]}, NOW - 150 * MINUTE), 1)
    lake.append(events_of({"public.t": counts["public.t"][150:]}, NOW, batch=2), 2)
    assert build(tmp_path).episodes
    record_batch(lake.paths.events, Application.consolidation("shop"), 1)
    made = build(tmp_path)
    assert not made.episodes
    assert made.operations.complete_from == pytest.approx(150, abs=1)


def test_lag_history_has_the_oldest_change_of_each_step(tmp_path: Path) -> None:
    lake = build_busy_lake(tmp_path / "warehouse", store_of(tmp_path), {"public.t": np.ones(30, np.int64)}, NOW)
    lag = build(tmp_path).lag.stages
    landing = lag["landing"][~np.isnan(lag["landing"])]
    # Batches land a minute apart, two seconds after their commits; state takes five at a time, 40 s later.
    assert set(landing.tolist()) == {2.0}
    # Events take five at a time, too, 20 s later.
    events = lag["events"][~np.isnan(lag["events"])]
    assert set(events.tolist()) == {4 * 60 + 22.0}
    state = lag["state"][~np.isnan(lag["state"])]
    assert set(state.tolist()) == {4 * 60 + 42.0}
    land(lake.paths, 31, NOW - timedelta(minutes=20), NOW - timedelta(minutes=10), NOW - timedelta(minutes=11))
    land(lake.paths, 32, NOW - timedelta(minutes=1), NOW - timedelta(minutes=1), kind="heartbeat")
    lake.reach_events(32, NOW - timedelta(seconds=50))
    reach_state(lake.paths, 32, NOW - timedelta(seconds=30), ["public.t"])
    lag = build(tmp_path).lag.stages
    assert np.nanmax(lag["landing"]) == 600
    assert np.nanmax(lag["events"]) == 1150
    assert np.nanmax(lag["state"]) == 1170


def test_lag_of_events_without_known_commit_is_not_plotted(tmp_path: Path) -> None:
    """A later commit does not stand for one of a version that noted no batches."""
    lake = PlainLake(tmp_path / "warehouse")
    for batch, minutes in ((1, 90), (2, 60), (3, 30)):
        land(lake.paths, batch, NOW - timedelta(minutes=minutes), NOW - timedelta(minutes=minutes))
    lake.append(events_of({"public.t": np.ones(120, np.int64)}, NOW), 1)
    record_batch(lake.paths.events, Application.reconcile("shop"), 2)
    lake.reach_events(3, NOW - timedelta(minutes=20))
    lag = build(tmp_path).lag.stages["events"]
    assert lag[~np.isnan(lag)].tolist() == [600]


def test_page_names_lag_of_each_stage(tmp_path: Path) -> None:
    build_busy_lake(tmp_path / "warehouse", store_of(tmp_path), {"public.t": np.ones(30, np.int64)}, NOW)
    page = render_page(build(tmp_path))
    text = Texts(page).text
    for stage, lag in (("landing", "2.0 s"), ("events", "4 min"), ("state", "5 min")):
        assert f"{stage} (median {lag}, worst {lag})" in text
        assert f'class="line {stage}"' in page and f".{stage} {{ stroke: var(--{stage}); }}" in page
        # Once for the light scheme, once for the dark one.
        assert len(set(re.findall(rf"--{stage}: (#\w+);", page))) == 2


def test_job_writes_one_page_with_all_sections(conf: Path, tmp_path: Path) -> None:
    counts = {f"public.t{number:02}": np.full(200, number + 1) for number in range(20)}
    counts["public.t19"][100:120] = 0
    build_busy_lake(tmp_path / "warehouse", store_of(tmp_path), counts, NOW)
    queue_dump(store_of(tmp_path), ["public.t03"])
    output = tmp_path / "page.html"
    done = run("--conf", str(conf), "--output", str(output))
    assert (done.exit_code, done.stdout) == (
        0, f"{output}: open problems: 0; tables with drops or spikes: 1 of 20 that changed\n"
    )
    page = output.read_text(encoding="utf-8")
    assert stat.S_IMODE(output.stat().st_mode) == stat.S_IMODE(conf.stat().st_mode)
    texts = Texts(page)
    assert texts.addresses == [] and texts.elements["script"] == 0
    assert "url(" not in page and "@import" not in page and escape(POLICY) in page
    for text in ("No open problems", "1 table with drops or spikes", "public.t19", "public.t00", "7 of 20 tables",
                 "search: 1", "drop ", "1 queued", "13 tables were never verified"):
        assert text in texts.text, text
    assert texts.elements["figure"] >= 1 + 6 + 1
    assert texts.elements["tr"] > 14


def test_page_of_empty_lake_names_the_next_step(conf: Path) -> None:
    done = run("--conf", str(conf), "--output", "-")
    assert done.exit_code == 0
    texts = Texts(done.stdout).text
    for text in ("landing is empty", "run capture", "No events yet.", "Nothing has landed", "No dump on record.",
                 "No tables yet.", "never ran"):
        assert text in texts, text


def test_names_and_problems_cannot_become_markup(tmp_path: Path) -> None:
    name = "public.\"<script>alert('x')</script>&amp;\x1b[31m\""
    counts = {name: np.full(30, 5)}
    build_busy_lake(tmp_path / "warehouse", store_of(tmp_path), counts, NOW)
    life = TableLife(name, LifeState.INCOMPLETE, NOW.isoformat(), "1/1", reason="</p><img src=x onerror=alert(1)>")
    save_life(store_of(tmp_path), life)
    page = render_page(build(tmp_path))
    texts = Texts(page)
    assert texts.elements["script"] == texts.elements["img"] == 0
    assert "<script>alert('x')</script>&amp;\N{REPLACEMENT CHARACTER}[31m" in texts.text
    assert "</p><img src=x onerror=alert(1)>" in texts.text
    assert not re.search("[\x00-\x08\x1b]", page)


def test_page_of_thousand_tables_stays_small(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    counts = {f"public.t{number:04}": random.poisson(0.5, 120) for number in range(1000)}
    lake = PlainLake(tmp_path / "warehouse")
    lake.append(events_of(counts, NOW), 1)
    page = render_page(build(tmp_path))
    texts = Texts(page)
    # Six have plots; the others are rows of two tables with a head each.
    assert texts.elements["tr"] == 1000 - 6 + 2
    assert len(page) < 1_500_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "soon"], "soon is no duration of a minute or more"),
        (["--output", "missing/page.html"], "there is no folder missing"),
    ],
)
def test_invalid_option_is_rejected(conf: Path, arguments: list[str], message: str) -> None:
    done = run("--conf", str(conf), *arguments)
    assert isinstance(done.exception, UsageError) and done.exception.what == message


def test_dead_letters_are_counted_by_output(tmp_path: Path) -> None:
    lake = build_busy_lake(tmp_path / "warehouse", store_of(tmp_path), {"public.t": np.ones(5, np.int64)}, NOW)
    document: dict[str, Any] = build_status(lake.paths, store_of(tmp_path), SourceReport(), late_seconds=120)
    (letters,) = document["dead_letters"]
    assert (letters["output"], letters["count"]) == ("search", 1)

