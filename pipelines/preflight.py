"""Wire ``preflight``: the configured database's checks and its ``--init``."""

from __future__ import annotations

from collections.abc import Sequence

from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Check, InitPlan
from dblake.base.lake.preflight import check_storage
from dblake.config import Config, PasswordReference
from dblake.ingest.capture.catalog_scan import has_capturable_table
from pipelines.sources import mysql_settings, open_source, postgres_settings


def check_source(config: Config) -> list[Check]:
    """Return every prerequisite of the configured source and warehouse, met or not."""
    return [*open_source(config).preflight(), *check_storage(config.warehouse)]


def find_tables(config: Config, checks: Sequence[Check]) -> Sequence[TableSchema]:
    """Return the tables that the patterns match; none if a check shows that the source cannot be read."""
    is_readable = all(check.ok for check in checks if check.check in ("connect", "server_version"))
    return open_source(config).tables() if is_readable else ()


def can_capture(config: Config, checks: Sequence[Check]) -> bool:
    """Return True if capture can start with these checks, and follow at least one table."""
    unmet = [check.affects for check in checks if not check.ok]
    return not unmet or ("source" not in unmet and has_capturable_table(open_source(config)))


def plan_source(config: Config, admin: str | None, password_env: str) -> InitPlan:
    """Return what ``init_source`` would run. Without an administrator it connects as the capture role."""
    login = config.source.user, config.source.password.read().get_secret_value()
    user = login if admin is None else (admin, _read_password(password_env))
    # Only one of the drivers has to be installed.
    if config.source.type == "postgres":
        from dblake.ingest.source.postgres.init import plan_init

        return plan_init(postgres_settings(config), *user)
    from dblake.ingest.source.mysql.init import plan_init as plan_mysql_init

    return plan_mysql_init(mysql_settings(config), *user)


def init_source(config: Config, admin: str, password_env: str) -> InitPlan:
    """Prepare the database for capture as ``admin`` and return the statements that ran."""
    if config.source.type == "postgres":
        from dblake.ingest.source.postgres.init import run_init

        return run_init(postgres_settings(config), admin, _read_password(password_env))
    from dblake.ingest.source.mysql.init import run_init as run_mysql_init

    return run_mysql_init(mysql_settings(config), admin, _read_password(password_env))


def _read_password(variable: str) -> str:
    return PasswordReference("env", variable, "--admin-password-env").read().get_secret_value()
