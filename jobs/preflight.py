"""``preflight``: list unmet prerequisites of a source, each with the statement that fixes it; ``--init`` runs them."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import json
from dataclasses import asdict

import click

from dblake.base.core.errors import ExitCode, UsageError
from dblake.base.core.source import InitPlan
from dblake.config import Config
from dblake.ingest.source.check_report import build_report, build_script
from jobs.cli.frame import job_options, run_job
from pipelines.preflight import can_capture, check_source, find_tables, init_source, plan_source


@click.command("preflight")
@job_options
@click.option(
    "--init", is_flag=True,
    help="Create what is missing: role, grants, watermark table; on PostgreSQL also publication and slot.",
)
@click.option("--dry-run", is_flag=True, help="With --init: print the SQL instead of running it.")
@click.option("--admin-user", metavar="USER", help="With --init: the privileged user who runs it.")
@click.option("--admin-password-env", metavar="VAR", help="With --init: the environment variable with its password.")
@click.option("--sql", "as_sql", is_flag=True,
              help="Print only the statements that correct what is not met, for psql or mysql.")
@click.option("--json", "as_json", is_flag=True,
              help="Print the checks as a JSON array of {check, ok, detail, fix, tables, affects}.")
def preflight(
    config: Config, init: bool, dry_run: bool, admin_user: str | None, admin_password_env: str | None, as_sql: bool,
    as_json: bool,
) -> int:
    """Check all prerequisites of the source and of a warehouse on S3; exit 78 if capture cannot start.

    Tables that do not meet their own prerequisites (marked !) are suspended; capture follows the others. The tables
    that were found are listed with what will happen to each.

    --init creates only what is missing, so it may be repeated. It never recreates a lost slot.
    """
    if as_sql and (as_json or init):
        raise UsageError("--sql beside --json or --init", next_step="give one of them; --init --dry-run prints SQL")
    if not init and (dry_run or admin_user or admin_password_env):
        raise UsageError("--dry-run and --admin-… require --init", next_step="add --init")
    if bool(admin_user) != bool(admin_password_env) or (init and not dry_run and not admin_user):
        raise UsageError(
            "--init needs a privileged user and its password",
            next_step="give both --admin-user and --admin-password-env",
        )
    if dry_run:
        _print_plan(plan_source(config, admin_user, admin_password_env or ""), as_json=as_json)
        return ExitCode.DONE
    if init and admin_user and admin_password_env:
        plan = init_source(config, admin_user, admin_password_env)
        for statement in plan.statements:
            click.echo(statement, err=as_json)
        for warning in plan.warnings:
            click.echo(f"manual step: {warning}", err=True)
    checks = check_source(config)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for line in build_script(checks) if as_sql else build_report(checks, find_tables(config, checks)):
            click.echo(line)
    return ExitCode.DONE if can_capture(config, checks) else ExitCode.CONFIGURATION


def _print_plan(plan: InitPlan, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(plan), indent=2))
        return
    for statement in plan.statements:
        click.echo(statement)
    if not plan.statements:
        click.echo("-- nothing is missing")
    for warning in plan.warnings:
        click.echo(f"-- manual step: {' '.join(warning.split())}")


if __name__ == "__main__":
    run_job(preflight)
