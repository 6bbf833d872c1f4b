"""Composes preflight: the configured database's checks, and what ``--init`` does to it."""

from __future__ import annotations

from dblake.config import Config, PasswordReference
from dblake.core.source import Check, InitPlan
from dblake.source.mysql import init as mysql
from dblake.source.postgres import init as postgres
from pipelines.sources import mysql_settings, open_source, postgres_settings


def check_source(config: Config) -> list[Check]:
    """Every prerequisite of the configured source, met or not."""
    return open_source(config).preflight()


def plan_source(config: Config, admin: str | None, password_env: str) -> InitPlan:
    """What ``init_source`` would do. Without an administrator the capture role itself looks, if it can connect."""
    who = (config.source.user, config.source.password.read().get_secret_value())
    if admin is not None:
        who = (admin, _password(password_env))
    if config.source.type == "postgres":
        return postgres.plan_init(postgres_settings(config), *who)
    return mysql.plan_init(mysql_settings(config), *who)


def init_source(config: Config, admin: str, password_env: str) -> InitPlan:
    """Prepares the database as ``admin`` and returns what was done."""
    if config.source.type == "postgres":
        return postgres.run_init(postgres_settings(config), admin, _password(password_env))
    return mysql.run_init(mysql_settings(config), admin, _password(password_env))


def _password(variable: str) -> str:
    return PasswordReference("env", variable, "--admin-password-env").read().get_secret_value()
