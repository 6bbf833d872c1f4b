"""Secrets by reference: the name of an environment variable or of a file, never the secret itself.

Guarantee: a configuration holds references only, so it can be printed, logged and kept in version control. The process
that needs a secret resolves its reference when it needs it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from dblake.base.core.errors import ConfigError

SECRET_KEY = re.compile(r"password|secret|token|credential|authorization|api-?key|jaas|\.key\.pem", re.IGNORECASE)
"""Names of settings whose values are secrets."""
_REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}\Z")


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a secret: an environment variable or a file. ``where`` is the setting's name, for messages."""

    kind: Literal["env", "file"]
    target: str
    where: str

    @classmethod
    def parse(cls, text: str, where: str) -> Self | None:
        """Parse ``${env:NAME}`` or ``${file:PATH}``; return None for anything else.

        >>> Reference.parse("${env:SHOP_PASSWORD}", "source.password")
        Reference(kind='env', target='SHOP_PASSWORD', where='source.password')
        >>> Reference.parse("hunter2", "source.password")
        """
        match = _REFERENCE.match(text)
        return cls("env" if match[1] == "env" else "file", match[2], where) if match else None

    def resolve(self) -> str:
        """Read the secret. Raises ConfigError if the variable is unset or the file unreadable."""
        if self.kind == "env":
            value = os.environ.get(self.target)
            if value is None:
                raise ConfigError(
                    f"{self.where}: the environment variable {self.target} is not set",
                    next_step=f"export {self.target}",
                )
            return value
        try:
            return Path(self.target).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
            raise ConfigError(
                f"{self.where}: the secret file {self.target} cannot be read: {reason}",
                next_step="make it readable for the user this job runs as, or name another file",
            ) from None
