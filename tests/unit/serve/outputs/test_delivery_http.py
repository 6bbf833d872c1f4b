"""A real lake delivered by the configured outputs: the settings, the format and the secrets reach the target."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from dblake.config import Config, load_config
from pipelines.subscribe import run_subscribe
from tests.support.consumers import TABLES, Shop
from tests.support.web_service import serve_requests


def _configure(folder: Path, url: str) -> Config:
    file = folder / "shop.yaml"
    file.write_text(json.dumps({
        "warehouse": "./warehouse", "progress": "file:./progress",
        "source": {"name": "shop", "type": "postgres", "host": "h", "database": "books", "user": "u",
                   "password": "${env:SHOP_PASSWORD}", "tables": ["public.*"]},
        "outputs": {
            "hook": {"type": "http", "url": url, "tls": "disable", "batch": 7, "format": "debezium",
                     "format_settings": {"prefix": "pre"}, "headers": {"Authorization": "${env:HOOK_TOKEN}"}},
        },
    }), encoding="utf-8")
    return load_config(file)


def test_lake_is_delivered_as_debezium_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bootstrap and later changes, in order; a second run sends what is new only."""
    monkeypatch.setenv("HOOK_TOKEN", "Bearer hunter2")
    shop = Shop(tmp_path)
    shop.land(*TABLES)
    shop.reconcile()
    shop.fold()
    for service in serve_requests():
        config = _configure(tmp_path, service.url)
        counts = run_subscribe(config, "hook", threading.Event(), until_caught_up=True)
        records = [record for _, lines in service.requests for record in lines]
        assert Counter(record["op"] for record in records) == {"r": counts.events} and counts.events >= 40
        assert {record["source"]["db"] for record in records} == {"books"}
        assert {record["source"]["name"] for record in records} == {"pre"}
        assert {headers["Authorization"] for headers, _ in service.requests} == {"Bearer hunter2"}
        service.requests.clear()
        shop.move(5)
        shop.land()
        shop.reconcile()
        run_subscribe(config, "hook", threading.Event(), until_caught_up=True)
        records = [record for _, lines in service.requests for record in lines]
        positions = [tuple(map(int, json.loads(record["source"]["sequence"]))) for record in records]
        assert positions == sorted(positions) and set(Counter(r["op"] for r in records)) <= {"c", "u", "d"}
        rows = {(r["source"]["table"], r["after"]["id"]): r["after"]["amount"] for r in records if r["after"]}
        state = {(t.partition(".")[2], row[0]): row[1] for t in TABLES for row in shop.rows(t)}
        assert len(records) >= 10
        assert {key: rows[key] for key in rows.keys() & state.keys()}.items() <= state.items()
