"""Wire alerts: the configured hooks, and the problems that ``status`` reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dblake.base.core.errors import ConfigError, DblakeError
from dblake.config import Config
from dblake.ingest.capture.progress import open_progress
from dblake.operate.alerts.announce import announce
from dblake.operate.alerts.hooks import CommandHook, Hook, Webhook


def announce_problems(config: Config, document: Mapping[str, Any]) -> list[DblakeError]:
    """Call the configured hooks for what ``status`` reports; return the errors of those that failed.

    Raises ConfigError without a hook.
    """
    alerts = config.alerts
    hooks = list[Hook]()
    if alerts.webhook is not None:
        hooks.append(Webhook(alerts.read_webhook(), alerts.timeout_seconds))
    if alerts.command is not None:
        hooks.append(CommandHook(alerts.command, alerts.timeout_seconds))
    if not hooks:
        raise ConfigError("alerts: there is no hook", next_step="set alerts.webhook or alerts.command")
    source = config.source.name
    return announce(source, document["problems"], hooks, open_progress(config.progress, source))
