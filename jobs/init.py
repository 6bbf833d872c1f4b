"""``init``: write a source's configuration file from its database's URL, and check the database."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import click

from dblake.base.core.errors import ExitCode, UsageError
from dblake.config import Config, load_config
from dblake.config.draft import DatabaseUrl, draft_config, example_of, suggest_name
from dblake.config.source import SOURCE_NAME
from dblake.ingest.source.check_report import build_report
from dblake.installation import application_home
from jobs.cli.frame import run_job, verbose_option
from pipelines.preflight import can_capture, check_source, find_tables

_SECRET_MODE = 0o600


@click.command("init")
@verbose_option
@click.argument("url", required=False)
@click.option("--conf", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="The file to write; default: NAME.yaml in this folder. An existing file is never replaced.")
@click.option("--name", metavar="NAME", help="The source's name; default: made from the database's name.")
@click.option("--tables", multiple=True, metavar="PATTERN",
              help="Tables to capture, such as 'public.*' or '!public.audit_*'; may be repeated.")
@click.option("--warehouse", default="warehouse", show_default=True, metavar="PATH",
              help="Where the lake's tables go: a path relative to the file, or s3://bucket/prefix.")
@click.option("--password-env", metavar="VAR", help="The environment variable that holds the password.")
@click.option("--tls", type=click.Choice(["verify", "require", "disable"]), help="How to connect; default: verify.")
@click.option("--check/--no-check", default=True, help="Run preflight afterwards; default: --check.")
def init(
    url: str | None, conf: Path | None, name: str | None, tables: tuple[str, ...], warehouse: str,
    password_env: str | None, tls: str | None, *, check: bool,
) -> int:
    """Write the commented configuration of a source, run preflight, and print what to do next.

    URL is postgresql://USER@HOST:PORT/DATABASE, mysql://… or mariadb://…; without it, the job prompts. A password in
    the URL, or typed, goes to a file NAME.password beside the configuration, which only this user can read.
    """
    target = DatabaseUrl.parse(url or _ask("Database URL (postgresql://USER@HOST:PORT/DATABASE)", "a URL"))
    name = name or suggest_name(target.database)
    if not re.match(SOURCE_NAME, name):
        raise UsageError(f"{name!r} is no name of a source", next_step="give --name: a-z, 0-9, _ and -, at most 40")
    file = conf or Path(f"{name}.yaml")
    if file.exists():
        raise UsageError(f"{file} exists", next_step="give another file with --conf; or edit it and run preflight")
    if password_env is None and target.password is None:
        target = replace(target, password=_ask(f"Password of {target.user}", "--password-env VAR", is_secret=True))
    secret = file.with_name(f"{name}.password")
    example = (application_home() / example_of(target.kind)).read_text(encoding="utf-8")
    reference = f"${{env:{password_env}}}" if password_env else f"${{file:{secret.name}}}"
    text = draft_config(
        example, target, name=name, password=reference, tables=tables, tls=tls, warehouse=warehouse,
    )
    written: list[Path] = []
    try:
        if password_env is None:
            _write(secret, f"{target.password}\n", written, _SECRET_MODE)
        _write(file, text, written)
        config = load_config(file)
    except BaseException:
        for each in written:
            each.unlink()
        raise
    click.echo(f"written: {file}" + ("" if password_env else f", and the password to {secret}"))
    is_capturable = not check or _check(config)
    for line in _next_steps(file, is_capturable=is_capturable):
        click.echo(line)
    return ExitCode.DONE if is_capturable else ExitCode.CONFIGURATION


def _ask(prompt: str, option: str, *, is_secret: bool = False) -> str:
    """Ask on the terminal. Raises UsageError without one."""
    if not sys.stdin.isatty():
        raise UsageError(f"{prompt.partition(' (')[0]} is missing", next_step=f"give {option}")
    return str(click.prompt(prompt, hide_input=is_secret, err=True))


def _write(file: Path, text: str, written: list[Path], mode: int = 0o666) -> None:
    """Create a file and add it to ``written``. Raises UsageError if it exists or cannot be created."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror}", next_step="give another --conf, or another --name"
        ) from error
    written.append(file)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)


def _check(config: Config) -> bool:
    """Print preflight's report and return whether capture can start."""
    checks = check_source(config)
    for line in build_report(checks, find_tables(config, checks)):
        click.echo(line)
    return can_capture(config, checks)


def _next_steps(file: Path, *, is_capturable: bool) -> list[str]:
    conf = f"--conf {file}"
    steps = [
        f"dblake up {conf}                      # capture, events and state, until Ctrl-C",
        f'dblake sql {conf} "SHOW TABLES"       # query the copy',
        f"dblake status {conf}                  # lag, tables, problems",
    ]
    if not is_capturable:
        steps.insert(0, f"dblake preflight {conf} --init --admin-user USER --admin-password-env VAR")
    return ["", "Next:", *(f"  {step}" for step in steps)]


if __name__ == "__main__":
    run_job(init)
