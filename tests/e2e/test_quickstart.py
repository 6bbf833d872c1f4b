"""The README's first command up to its verification, and queries on the tables it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from dblake.ingest.source.postgres.ports import free_port

HOME = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(1500)
CONF = """
warehouse: ./lake/warehouse
progress: file:./lake/progress
source:
  name: shop
  type: postgres
  host: 127.0.0.1
  port: {port}
  database: shop
  user: dblake
  password: ${{file:./lake/password}}
  tls: disable
  tables: ["public.*"]
dump: {{chunk_size: 3000}}
"""


def submit(*arguments: str, seconds: int = 600, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a job as a user does, with text output; in the folder ``cwd``, if given."""
    return subprocess.run(
        [str(HOME / "spark-submit.sh"), *arguments], capture_output=True, text=True, timeout=seconds, check=False,
        cwd=cwd,
    )


def submit_in_background(*arguments: str, seconds: int = 1200) -> subprocess.CompletedProcess[str]:
    """Run a job as `&` in a script or a CI runner does: SIGINT ignored, no terminal, nothing on stdin."""
    return subprocess.run(
        [str(HOME / "spark-submit.sh"), *arguments], capture_output=True, text=True, timeout=seconds, check=False,
        stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def processes_below(folder: Path) -> list[str]:
    """Return the command lines of the processes that name the folder or write their output below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            log = os.readlink(process / "fd/1")
        except OSError:
            continue
        if str(folder) in command or log.startswith(str(folder)):
            found.append(command)
    return found


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the configuration of a completed quickstart, with its output in a file beside it."""
    folder = tmp_path_factory.mktemp("quickstart")
    conf = folder / "quickstart.yaml"
    conf.write_text(CONF.format(port=free_port()))
    done = submit_in_background("quickstart", "--conf", str(conf), "--scale", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "output").write_text(done.stdout)
    (folder / "remaining").write_text("\n".join(processes_below(folder)))
    yield conf


def test_quickstart_verifies_every_table(conf: Path) -> None:
    output = (conf.parent / "output").read_text()
    for table in ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers"):
        assert any(table in line and "equal" in line for line in output.splitlines()), output
    assert "DIFFERENT" not in output


def test_quickstart_in_background_leaves_no_process(conf: Path) -> None:
    assert (conf.parent / "remaining").read_text() == ""


def test_sql_sums_agree_over_all_views(conf: Path) -> None:
    """Accounts, tellers and branches get each delta of pgbench, so all sums agree."""
    statement = """
        SELECT (SELECT count(*) FROM public.pgbench_accounts) AS accounts,
               (SELECT sum(abalance) FROM pgbench_accounts) AS account_money,
               (SELECT sum(tbalance) FROM pgbench_tellers_live) AS teller_money,
               (SELECT sum(delta) FROM pgbench_history) AS paid,
               (SELECT sum(bbalance) FROM pgbench_branches_history WHERE _valid_to IS NULL) AS branch_money,
               (SELECT count(*) FROM dblake.events WHERE "table" = 'public.pgbench_history') AS payments
    """
    done = submit("sql", "--conf", str(conf), "--json", statement)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["accounts"] == 100_000
    assert row["payments"] > 0
    assert row["account_money"] == row["teller_money"] == row["paid"] == row["branch_money"]


def test_status_shows_stages_at_same_position(conf: Path) -> None:
    done = submit("status", "--conf", str(conf), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["source"] == "shop"
    assert document["stages"]["landing"]["position"] == document["stages"]["events"]["position"] == document["position"]
    assert {(d["table"], d["state"]) for d in document["dumps"]} == {
        ("public.pgbench_accounts", "done"), ("public.pgbench_branches", "done"), ("public.pgbench_tellers", "done"),
    }
    # Small tables may change as a whole whenever they are read: they are compared at rest alone.
    verified = {v["table"]: v["differences"] for v in document["verifications"]}
    assert "public.pgbench_accounts" in verified and set(verified.values()) == {0}


def test_readers_without_spark_read_all_rows(conf: Path) -> None:
    """docs/readers.md: DuckDB over delta-rs, and delta-rs alone."""
    table = DeltaTable(str(conf.parent / "lake/warehouse/shop/state/public/pgbench_accounts"))
    accounts = table.to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("accounts", accounts)
    result = connection.sql("SELECT count(*), min(aid), max(aid) FROM accounts WHERE NOT _deleted").fetchall()
    assert result == [(100_000, 1, 100_000)]
    assert accounts.count_rows() == 100_000


def test_quickstart_foreign_folder_rejected(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "thesis.txt").write_text("years of work")
    conf = tmp_path / "quickstart.yaml"
    conf.write_text(CONF.format(port=1))
    done = submit("quickstart", "--conf", str(conf))
    assert done.returncode == 78
    assert "did not create" in done.stderr
    assert (tmp_path / "lake" / "thesis.txt").read_text() == "years of work"
