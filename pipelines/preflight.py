"""Composes preflight: the configured database's checks, and what ``--init`` does to it."""

from __future__ import annotations

from dblake.config import Config, PasswordReference
from dblake.core.source import Check
from dblake.source.postgres import init, preflight
from dblake.source.postgres.init import InitPlan
from pipelines.sources import postgres_settings


def check_source(config: Config) -> list[Check]:
    """Every prerequisite of the configured source, met or not."""
    return preflight.preflight(postgres_settings(config))


def plan_source(config: Config, admin: str | None, password_env: str) -> InitPlan:
    """What ``init_source`` would do. Without an administrator the capture role itself looks, if it can connect."""
    settings = postgres_settings(config)
    if admin is None:
        return init.plan_init(settings, settings.user, settings.password)
    return init.plan_init(settings, admin, _password(password_env))


def init_source(config: Config, admin: str, password_env: str) -> InitPlan:
    """Prepares the database as ``admin`` and returns what was done."""
    return init.run_init(postgres_settings(config), admin, _password(password_env))


def _password(variable: str) -> str:
    return PasswordReference("env", variable, "--admin-password-env").read().get_secret_value()
