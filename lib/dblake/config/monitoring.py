"""The sections ``status``, ``alerts``, ``verify`` and ``quality``: what is a problem of a source, and what it calls.

Place: sections of ``models``. Invariants that always hold are left to the package ``quality``.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from dblake.base.core.errors import ConfigError
from dblake.config.file import ConfigFile
from dblake.config.outputs import WEB_ADDRESS
from dblake.config.references import PasswordReference, parse_reference
from dblake.config.section import Section

AGE = r"^[1-9][0-9]*[smhd]$"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(age: str) -> float:
    """Return an age, a number and s, m, h or d, in seconds."""
    return float(age[:-1]) * _SECONDS[age[-1]]


def _is_address(url: str) -> bool:
    return re.match(WEB_ADDRESS + r"[^\s/]", url) is not None


class StatusConfig(Section):
    """What `status` reports as a problem."""

    late_seconds: float = Field(
        120.0, gt=0,
        description="Lag after which `status` reports a stage as `late`, in seconds; set it above the interval "
                    "between two runs.",
    )
    output_late_seconds: float = Field(
        60.0, gt=0,
        description="Lag behind events, or time of failed writes, after which `status` reports an output as "
                    "`output_late`, in seconds. A healthy output lags by seconds, and an outage of a minute is worth a "
                    "look.",
    )
    output_stopped_seconds: float = Field(
        120.0, gt=0,
        description="Time without a process after which `status` reports an output with work to do as "
                    "`output_stopped`, in seconds. `up` pauses up to 60 s before a restart; set it above the interval "
                    "between two bounded runs.",
    )
    dead_letters: int = Field(
        0, ge=0,
        description="Dead letters of an output within `dead_letter_age` that are no problem. Each is an event that the "
                    "target lacks.",
    )
    dead_letter_age: str = Field(
        "24h", pattern=AGE,
        description="Age up to which dead letters count: a number and s, m, h or d. A day, so that each shift sees "
                    "them; then the problem ends.",
    )

    listen: str = Field(
        "127.0.0.1", min_length=1,
        description="Address that --metrics-port and --report-port open, without authentication. Another than the "
                    "loopback one is reachable from other machines.",
    )

    def outputs(self) -> dict[str, Any]:
        """Return the limits of outputs as keyword arguments of ``status.outputs.OutputLimits``."""
        return {
            "late_seconds": self.output_late_seconds, "stopped_seconds": self.output_stopped_seconds,
            "dead_letters": self.dead_letters, "dead_letter_seconds": seconds_of(self.dead_letter_age),
        }


class AlertsConfig(Section):
    """What is called when a problem of `status` begins, and when it ends: docs/deployment.md."""

    webhook: str | PasswordReference | None = Field(
        None,
        description="Address that alerts are posted to as JSON, https:// or http://; one with a secret in it is "
                    "${env:NAME} or ${file:PATH}.",
    )
    command: str | None = Field(
        None, min_length=1, description="Command that gets an alert as JSON on its standard input; run without a shell."
    )
    timeout_seconds: float = Field(
        10.0, gt=0, le=300, description="How long one call may take; then it is ended, and repeated 30 s later."
    )

    @property
    def has_hook(self) -> bool:
        """True if an alert goes anywhere."""
        return self.webhook is not None or self.command is not None

    def read_webhook(self) -> str | None:
        """Return the webhook's address. Raises ConfigError if its reference cannot be read, or it is no address."""
        url = self.webhook.resolve() if isinstance(self.webhook, PasswordReference) else self.webhook
        if url is not None and not _is_address(url):
            raise ConfigError("alerts.webhook: must be https:// or http://", next_step="correct the address")
        return url

    @field_validator("webhook", mode="before")
    @classmethod
    def _parse_webhook(cls, webhook: Any, info: ValidationInfo) -> Any:
        if isinstance(webhook, str) and not webhook.startswith("${"):
            if not _is_address(webhook):
                raise ValueError("must be https:// or http://, or a reference to such an address")
            return webhook
        return None if webhook is None else parse_reference(PasswordReference, webhook, "alerts.webhook", info)

    @field_validator("command")
    @classmethod
    def _validate_command(cls, command: str | None) -> str | None:
        if command is not None and not shlex.split(command):
            raise ValueError("must have a program")
        return command


class VerifyConfig(Section):
    """Comparing state with the source: `verify`."""

    max_age: str | None = Field(
        None, pattern=AGE,
        description="Age after which `status` reports a table's newest verification: a number and s, m, h or d, such "
                    "as 24h; null: never.",
    )
    sample: float = Field(1.0, gt=0, le=1, description="Share of each table's key ranges that `verify` reads.")

    @property
    def max_age_seconds(self) -> float | None:
        """``max_age`` in seconds; None if verification has no age limit."""
        return None if self.max_age is None else seconds_of(self.max_age)


class QualityConfig(Section):
    """What `check` validates besides its own invariants."""

    suites: str | None = Field(
        None, min_length=1, description="Folder of great-expectations suites, one JSON file per table."
    )

    @field_validator("suites")
    @classmethod
    def _resolve_suites(cls, folder: str | None, info: ValidationInfo) -> str | None:
        return None if folder is None else ConfigFile.of(info.context).beside(folder)
