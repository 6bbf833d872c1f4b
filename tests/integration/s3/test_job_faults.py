"""A job whose store rejects it ends with the cause, the next step and the exit code, and names no credential."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dblake.base.lake.storage import Location, join
from dblake.ingest.source.postgres.ports import free_port
from dblake.landing.table import Landing
from tests.support.s3 import ACCESS_KEY, S3_KEYS, SECRET_KEY, S3Server, location, storage, storage_section
from tests.support.s3_proxy import Fault, Rule, S3Proxy

HOME = Path(__file__).parents[3]


def run_status(folder: Path, warehouse: Location, *options: str) -> tuple[int, str]:
    """Run the job ``status`` without a database; return its exit code and output."""
    conf = folder / "shop.yaml"
    conf.write_text(json.dumps({
        "warehouse": warehouse, "progress": "file:./progress", "storage": storage_section(warehouse.storage),
        "source": {"name": "shop", "type": "postgres", "host": "127.0.0.1", "database": "d", "user": "u",
                   "password": "${env:UNUSED}", "tables": ["public.*"]},
    }), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(HOME / "jobs/status.py"), "--conf", str(conf), "--offline", *options],
        capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | S3_KEYS | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        (None, 0, "landing"),
        (Fault.DENIED, 78, "object storage denied access (http://127.0.0.1:{port}). Next: run preflight"),
        (Fault.EXPIRED, 75, "the credentials of object storage have expired (http://127.0.0.1:{port}). Next: renew"),
        pytest.param(Fault.SLOW_DOWN, 75, "object storage is throttling or unavailable", marks=pytest.mark.slow),
    ],
    ids=["none", "denied", "expired", "throttled"],
)
def test_job_names_fault_of_store(s3: S3Server, tmp_path: Path, fault: Fault | None, code: int, text: str) -> None:
    with S3Proxy(s3.port) as proxy:
        warehouse = location(s3, port=proxy.port)
        Landing(join(warehouse, "shop", "landing"), "shop")
        if fault:
            proxy.set(Rule(fault))
        ended, output = run_status(tmp_path, warehouse)
    assert (ended, text.format(port=proxy.port) in output) == (code, True), output
    assert SECRET_KEY not in output and ACCESS_KEY not in output


def test_job_names_missing_bucket(s3: S3Server, tmp_path: Path) -> None:
    ended, output = run_status(tmp_path, Location("s3://no-such-bucket/lake", location(s3).storage))
    assert (ended, "the bucket of the warehouse does not exist (http:" in output) == (78, True), output


def test_job_names_unreachable_store(tmp_path: Path) -> None:
    """No server listens at the endpoint: what, where and the next step, and no name of a class."""
    reached = storage(free_port())
    ended, output = run_status(tmp_path, Location("s3://lake/x", reached))
    assert ended == 75 and output.count("\n") == 1, output
    assert f"object storage at {reached.endpoint} cannot be reached: connection refused" in output
    assert "Next: check `storage.endpoint`" in output and "Error" not in output
