"""Commands in the documentation: the block of docs/start.md is run, the others must parse."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import click
import pytest

from tests.support.postgres import Database

HOME = Path(__file__).parents[2]
PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
_NOT_JOBS = {"archive", "setup", "tests", "stress", "benchmark", "airflow"}


def blocks(page: Path) -> list[str]:
    """Return the shell blocks of a page, with continued lines joined."""
    texts = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block.replace("\\\n", " ") for block in texts]


COMMANDS = sorted({
    command.strip() for page in PAGES for block in blocks(page)
    for command in re.findall(r"\./spark-submit\.sh [a-z][^#&|\n]*", block)
})


def test_docs_contain_commands() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_docs_command_parses(command: str) -> None:
    parse_command(command)


def parse_command(command: str) -> None:
    """Parse a command line of spark-submit.sh as its job does. Raises click's errors."""
    _, name, *arguments = shlex.split(command)
    if name in _NOT_JOBS:
        return
    # Options of the script itself.
    words = iter(arguments)
    arguments = [word for word in words if word not in ("--master", "--spark-conf") or not next(words)]
    job: click.Command = getattr(importlib.import_module(f"jobs.{name}"), name)
    context = job.make_context(name, arguments)
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest and context.command.invoke_without_command:
            return
        part, inner, rest = context.command.resolve_command(context, rest)
        assert inner is not None
        context = inner.make_context(part or "", rest, parent=context)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_start_commands_replicate_database(database: Database, tmp_path: Path) -> None:
    (block,) = [block for block in blocks(HOME / "docs" / "start.md") if "preflight --init" in block]
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 1000) n",
    )
    (tmp_path / "spark-submit.sh").symlink_to(HOME / "spark-submit.sh")
    shutil.copytree(HOME / "conf", tmp_path / "conf")
    settings = tmp_path / "conf" / "postgres.yaml"
    values = {
        "port": database.server.port, "database": database.name, "user": f"readme_{database.name}", "tls": "disable",
        "slot": f"readme_{database.name}", "trigger_seconds": 1.0, "interval_seconds": 1.0,
    }
    for key, value in values.items():
        changed = re.sub(rf"^  {key}: \S+", f"  {key}: {value}", settings.read_text(), count=1, flags=re.MULTILINE)
        settings.write_text(changed)
    # The block's last command runs until it is stopped.
    with (tmp_path / "stderr").open("wb") as stderr:
        shell = subprocess.Popen(
            ["bash", "-uc", block.replace("…", "secret")], cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr,
            env=os.environ | {"PGPASSWORD": database.server.password}, start_new_session=True,
        )
        try:
            conf = ["--conf", str(tmp_path / "conf" / "shop.yaml")]
            assert wait_for_rows(tmp_path, conf) == 1000, (tmp_path / "stderr").read_text()
            os.killpg(shell.pid, signal.SIGINT)
            assert shell.wait(30) in (0, -signal.SIGINT), (tmp_path / "stderr").read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)


def wait_for_rows(folder: Path, conf: list[str]) -> int:
    """Poll ``sql`` until it counts rows and return the count."""
    deadline = time.monotonic() + 300
    while True:
        done = subprocess.run(
            [str(HOME / "spark-submit.sh"), "sql", *conf, "SELECT count(*) AS n FROM public.orders", "--json"],
            cwd=folder, capture_output=True, text=True, timeout=200, check=False,
            env=os.environ | {"SHOP_PASSWORD": "secret"},
        )
        if (done.returncode == 0 and json.loads(done.stdout)[0]["n"]) or time.monotonic() > deadline:
            assert done.returncode == 0, done.stderr
            return int(json.loads(done.stdout)[0]["n"])
        time.sleep(2)
