"""The commands in the documentation: those of the README's "Use it" are run, the others understood by the jobs."""

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
from pathlib import Path

import click
import pytest

from tests.support.postgres import Database

HOME = Path(__file__).parents[2]
PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
_NOT_JOBS = {"setup", "tests", "stress", "benchmark", "airflow"}


def blocks(page: Path) -> list[str]:
    """The shell blocks of a page, long lines joined."""
    found = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block.replace("\\\n", " ") for block in found]


COMMANDS = sorted({
    command.strip() for page in PAGES for block in blocks(page)
    for command in re.findall(r"\./spark-submit\.sh [a-z][^#&|\n]*", block)
})


def test_there_are_commands_to_look_at() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_the_job_understands(command: str) -> None:
    _, name, *arguments = shlex.split(command)
    if name in _NOT_JOBS:
        return
    # The script's own.
    kept = iter(arguments)
    arguments = [word for word in kept if word not in ("--master", "--spark-conf") or not next(kept)]
    job: click.Command = getattr(importlib.import_module(f"jobs.{name}"), name)
    context = job.make_context(name, arguments)
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        part, inner, rest = context.command.resolve_command(context, rest)
        assert inner is not None
        context = inner.make_context(part or "", rest, parent=context)


@pytest.mark.timeout(600)
def test_the_readmes_own_database(database: Database, tmp_path: Path) -> None:
    (block,) = [block for block in blocks(HOME / "README.md") if "preflight --init" in block]
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 1000) n",
    )
    (tmp_path / "spark-submit.sh").symlink_to(HOME / "spark-submit.sh")
    shutil.copytree(HOME / "conf", tmp_path / "conf")
    settings = tmp_path / "conf" / "postgres.yaml"
    here = {
        "port": database.server.port, "database": database.name, "user": f"readme_{database.name}", "tls": "disable",
        "slot": f"readme_{database.name}", "trigger_seconds": 1.0, "interval_seconds": 1.0,
    }
    for key, value in here.items():
        changed = re.sub(rf"^  {key}: \S+", f"  {key}: {value}", settings.read_text(), count=1, flags=re.MULTILINE)
        settings.write_text(changed)
    # What runs on in the background outlives the shell, and is ended with its group.
    with (tmp_path / "said").open("wb") as said:
        shell = subprocess.Popen(
            ["bash", "-uc", block.replace("…", "secret")], cwd=tmp_path, stdout=subprocess.PIPE, stderr=said,
            env=os.environ | {"PGPASSWORD": database.server.password}, start_new_session=True,
        )
        try:
            # Its last line, which asks for rows, comes before there are any.
            shell.wait(300)
            conf = ["--conf", str(tmp_path / "conf" / "shop.yaml")]
            assert counted(tmp_path, conf) == 1000, (tmp_path / "said").read_text()
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
            time.sleep(1)


def counted(folder: Path, conf: list[str]) -> int:
    """What ``sql`` counts once the dump has come through."""
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
