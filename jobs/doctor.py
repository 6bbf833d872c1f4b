"""``doctor``: collect versions, configuration, checks, status and errors in one file for a bug report."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from dblake.base.core.errors import DblakeError, UsageError
from dblake.base.core.transient import transient_reason
from dblake.config import Config, load_config
from dblake.config.file import ConfigFile
from dblake.operate.status.bug_report import Findings, build_bug_report, list_versions
from jobs.cli.frame import run_job, verbose_option
from pipelines.preflight import check_source
from pipelines.status import read_status

_Result = TypeVar("_Result")
_PRIVATE = 0o600


@click.command("doctor")
@verbose_option
@click.option("--conf", type=click.Path(path_type=Path), metavar="FILE", envvar="DBLAKE_CONF",
              help="Configuration file; default: DBLAKE_CONF. It may be faulty.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              default=Path("dblake-doctor.md"), show_default=True,
              help="The file to write; an existing one is replaced.")
@click.option("--offline", is_flag=True, help="Do not contact the database.")
def doctor(conf: Path | None, output: Path, *, offline: bool) -> None:
    """Write versions, configuration, preflight's checks, status and errors into one file for a bug report.

    The file has no secrets and no rows, but names of hosts, tables and columns: read it before you send it. A step that
    fails is named in the file, and the others run.
    """
    if conf and output.exists() and conf.exists() and output.samefile(conf):
        raise UsageError(f"{output} is the configuration", next_step="name another file with --output")
    errors: dict[str, str] = {}
    file = _attempt(errors, "configuration file", lambda: ConfigFile.read(conf)) if conf else None
    config: Config | None = _attempt(errors, "configuration", lambda: load_config(file.path)) if file else None
    checks = _attempt(errors, "preflight", lambda: check_source(config)) if config and not offline else None
    status = _attempt(errors, "status", lambda: read_status(config, ask_source=not offline)) if config else None
    findings = Findings(file.content if file else {}, checks or (), status or {}, errors)
    text = build_bug_report(list_versions(), findings)
    try:
        output.touch(_PRIVATE)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{output} cannot be written: {error.strerror}", next_step="name a file in a writable folder with --output"
        ) from error
    click.echo(f"written: {output}. It names hosts, tables and columns: read it before you send it.")


def _attempt(errors: dict[str, str], step: str, run: Callable[[], _Result]) -> _Result | None:
    """Return what a step returns; None if it fails, with its error noted."""
    try:
        return run()
    except DblakeError as error:
        errors[step] = str(error)
    except Exception as error:  # noqa: BLE001 - a bug in one step is what the file reports
        errors[step] = transient_reason(error) or f"unexpected {type(error).__name__}; run {step} with --verbose"
    return None


if __name__ == "__main__":
    run_job(doctor)
