"""What an alert calls: a webhook or a command, each within a time-out.

Place: below ``announce``, which decides what to call them with. Guarantee: a command ends within its time-out, with all
processes that it has started in its group; of a webhook, connecting and each part of the answer do. A failure is an
error with the hook's key, and shows no secret.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from dblake.base.core.errors import ConfigError, OutputUnavailable
from dblake.base.core.extras import named_extras
from dblake.base.core.tls import Tls


class Hook(Protocol):
    """One place that alerts go to; ``name`` is its configuration key."""

    @property
    def name(self) -> str: ...

    def call(self, document: Mapping[str, Any]) -> None:
        """Deliver a document. Raises OutputUnavailable or ConfigError if that failed."""


@dataclass(frozen=True)
class Webhook:
    """Posts the document as JSON; any status below 300 is success."""

    url: str
    seconds: float
    name: str = "webhook"

    def call(self, document: Mapping[str, Any]) -> None:
        """Deliver a document; see Hook."""
        # Of an extra of its own, which status needs for nothing else.
        with named_extras():
            from dblake.serve.outputs.web import WebService

        tls: Tls = "disable" if self.url.startswith("http://") else "verify"
        service = WebService("alerts.webhook: the service", "alerts.webhook", self.url, tls, None, self.seconds)
        try:
            answer = service.post(self.url, json.dumps(document).encode(), {"Content-Type": "application/json"})
        finally:
            service.close()
        if answer.status >= 300:
            raise OutputUnavailable(f"{service.where}: status {answer.status}", next_step="correct alerts.webhook")


@dataclass(frozen=True)
class CommandHook:
    """Runs a command without a shell, with the document as JSON on its standard input; exit code 0 is success."""

    command: str
    seconds: float
    name: str = "command"

    def call(self, document: Mapping[str, Any]) -> None:
        """Deliver a document; see Hook."""
        words = shlex.split(self.command)
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"alerts.command: {words[0]} cannot be run: {error.strerror}", next_step="correct alerts.command"
            ) from error
        try:
            process.communicate(json.dumps(document).encode(), self.seconds)
        except subprocess.TimeoutExpired as error:
            raise OutputUnavailable(
                f"alerts.command: {words[0]} did not end within {self.seconds:g} s",
                next_step="correct the command, or raise alerts.timeout_seconds",
            ) from error
        finally:
            # What it has left in the background, too.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise OutputUnavailable(
                f"alerts.command: {words[0]} ended with {process.returncode}", next_step="correct alerts.command"
            )


def make_hooks(webhook: str | None, command: str | None, seconds: float) -> list[Hook]:
    """Return the hooks that are configured. Raises ConfigError without one."""
    hooks = list[Hook]()
    if webhook is not None:
        hooks.append(Webhook(webhook, seconds))
    if command is not None:
        hooks.append(CommandHook(command, seconds))
    if not hooks:
        raise ConfigError("alerts: there is no hook", next_step="set alerts.webhook or alerts.command")
    return hooks
