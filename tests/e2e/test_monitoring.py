"""conf/monitoring beside a real Prometheus that scrapes ``up``: every query returns data, and every alert fires."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from dblake.ingest.source.postgres.ports import free_port
from tests.e2e.test_run import HOME, TABLES, Shop
from tests.e2e.test_up import running
from tests.support.debian import tree
from tests.support.postgres import Database
from tests.support.wheel import NO_JVM

RULES = HOME / "conf" / "monitoring" / "alerts.yaml"
DASHBOARD = json.loads((HOME / "conf" / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ALERTS = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
_METRIC = re.compile(r"\bdblake_\w+")

#: Series that make each alert fire in the twentieth minute, and series that do not.
_CASES = {
    "DblakeUnwatched": ('dblake_status_time_seconds{source="shop"}', "0x30", "0+60x30"),
    "DblakeLosesLog": ('dblake_problems{source="shop",code="gap"}', "1x30", "0x30"),
    "DblakeLate": ('dblake_lag_seconds{source="shop",stage="state"}', "901x30", "900x30"),
    "DblakeActionRequired": ('dblake_problems{source="shop",code="dump_failed"}', "2x30", "0x30"),
}


def test_monitoring_names_metrics_of_status_alone() -> None:
    """Queries and alerts name no metric that the runbook does not describe."""
    runbook = (HOME / "docs" / "runbook.md").read_text(encoding="utf-8")
    named = {name for text in (*QUERIES, *(rule["expr"] for rule in ALERTS)) for name in _METRIC.findall(text)}
    assert len(QUERIES) > 10 and named
    assert named - set(re.findall(r"`(dblake_\w+)`", runbook)) == set()


@pytest.mark.slow
def test_alerts_fire_for_what_they_name(tmp_path: Path) -> None:
    assert set(_CASES) == {rule["alert"] for rule in ALERTS}
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(RULES.with_name("prometheus.yaml")))
    cases = [
        {"interval": "1m", "input_series": [{"series": series, "values": values}],
         "promql_expr_test": [{"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', "eval_time": "20m",
                               "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}]}
        for alert, (series, bad, good) in _CASES.items() for fires, values in ((True, bad), (False, good))
    ]
    tests = tmp_path / "tests.yaml"
    tests.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    promtool("test", "rules", str(tests))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dashboard_queries_return_data(database: Database, tmp_path: Path) -> None:
    """The lake has an output that works and one that failed, a paused dump, and verified tables."""
    shop = Shop(database, tmp_path)
    shop.conf.write_text(json.dumps(json.loads(shop.conf.read_text()) | {"outputs": {
        "archive": {"type": "jsonl", "path": str(tmp_path / "t1.jsonl"), "tables": ["public.t1"], "start": "1/0"},
        "broken": {"class": "no.such:Class"},
    }}))
    shop.write(1, 5)
    database.run("ANALYZE t0")
    shop.run("dump", "start", "--table", "public.t0")
    shop.run("dump", "pause")
    metrics, port = free_port(), free_port()
    with running(shop, tmp_path, "--metrics-port", str(metrics), **NO_JVM) as up, prometheus(tmp_path, metrics, port):
        deadline = time.monotonic() + 120
        while shop.count(TABLES[-1]) != 5:
            assert time.monotonic() < deadline, up.log.read_text()
            time.sleep(0.5)
        shop.run("verify", "--table", "public.t1", "--wait")
        missing = {*QUERIES, *(name for rule in ALERTS for name in _METRIC.findall(rule["expr"]))}
        deadline = time.monotonic() + 120
        while missing:
            assert time.monotonic() < deadline, (missing, up.log.read_text())
            missing = {query for query in missing if not ask(port, query)}
            time.sleep(1)
        states = ask(port, 'ALERTS{alertname="DblakeActionRequired"}')
        # The tables had rows before capture saw them, and are not dumped.
        assert {series["metric"]["code"] for series in states} == {"incomplete", "output_stopped"}


@contextmanager
def prometheus(folder: Path, metrics: int, port: int) -> Iterator[None]:
    """Run a Prometheus with the repository's rules that scrapes a port each second."""
    settings = yaml.safe_load(RULES.with_name("prometheus.yaml").read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(RULES)]
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{metrics}"]
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(settings))
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", str(tree("prometheus") / "usr/bin/prometheus"), f"--config.file={file}",
             f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def ask(port: int, query: str) -> list[Any]:
    """Return the series of a query for all sources; none while Prometheus starts."""
    address = f"http://127.0.0.1:{port}/api/v1/query?"
    address += urllib.parse.urlencode({"query": query.replace("$source", ".*")})
    with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own server
        return list(json.load(answer)["data"]["result"])
    return []


def promtool(*arguments: str) -> None:
    """Run promtool and require success."""
    done = subprocess.run([str(tree("prometheus") / "usr/bin/promtool"), *arguments], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
