"""What ``status`` says of tables that changed without row events."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.capture.progress import FileProgress
from dblake.capture.requests import pending, queue_dump, save_progress
from dblake.capture.rewritten import Rewritten, keep
from dblake.config import load_config
from pipelines.status import read_status

T = "public.t"


@pytest.mark.parametrize(
    ("asked", "outcome", "then"),
    [
        (False, None, "dump start --table 'public.t'"),
        (True, "queued", "run capture until dump {0} is done"),
        (True, "running", "run capture until dump {0} is done"),
        (True, "cancelled", "dump start --table 'public.t'"),
        (True, "done", None),
    ],
)
def test_a_table_to_be_read_again_is_a_problem(
    tmp_path: Path, asked: bool, outcome: str | None, then: str | None
) -> None:
    conf = tmp_path / "shop.yaml"
    conf.write_text(
        "warehouse: ./warehouse\nprogress: file:./progress\nsource:\n  name: shop\n  type: postgres\n"
        "  host: 127.0.0.1\n  database: shop\n  user: dblake\n  password: ${env:NONE}\n  tables: [public.*]\n"
    )
    store = FileProgress(tmp_path / "progress/shop")
    dump_id = queue_dump(store, [T]) if asked else None
    for task in pending(store):
        moved = {"running": task.running, "cancelled": task.cancelled, "done": task.done}
        if outcome in moved:
            save_progress(store, moved[outcome]())
    keep(store, Rewritten(T, "column c came", dump_id))
    problems = [p for p in read_status(load_config(conf))["problems"] if p["code"] == "rewritten"]
    expected = {"code": "rewritten", "table": T, "detail": "it changed without row events: column c came",
                "next": (then or "").format(dump_id)}
    assert problems == ([expected] if then else [])
