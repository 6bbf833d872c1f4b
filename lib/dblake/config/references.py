"""Secrets that the configuration names by reference. A reference is resolved only when ``read`` is called.

So jobs that never connect to the database run without its password.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from pydantic import SecretStr, ValidationInfo

from dblake.base.core.errors import ConfigError
from dblake.base.core.secret import Reference
from dblake.config.file import ConfigFile

_MIN_KEY_BYTES = 16

_Reference = TypeVar("_Reference", bound=Reference)


class PasswordReference(Reference):
    """A reference to a password."""

    def read(self) -> SecretStr:
        """Return the current password. Raises ConfigError if the variable is unset or the file unreadable."""
        return SecretStr(self.resolve())


class KeyReference(Reference):
    """A reference to the key of hashed columns."""

    def read(self) -> bytes:
        """Return the current key. Raises ConfigError if it cannot be read or is short enough to be brute-forced."""
        key = self.resolve().encode()
        if len(key) < _MIN_KEY_BYTES:
            raise ConfigError(
                f"{self.where}: the key has {len(key)} bytes; keys shorter than {_MIN_KEY_BYTES} bytes can be "
                "brute-forced",
                next_step="generate a key, for instance with `openssl rand -hex 32`",
            )
        return key


def parse_reference(kind: type[_Reference], value: Any, key: str, info: ValidationInfo) -> _Reference:
    """Return the reference that a configuration value holds; a relative file path is resolved beside the file.

    Raises ValueError for anything that is not a reference, without quoting it.
    """
    file = ConfigFile.of(info.context)
    reference = kind.parse(value, file.where(key)) if isinstance(value, str) else None
    if not reference:
        raise ValueError("must be a reference, ${env:NAME} or ${file:PATH}; a literal secret is rejected")
    return replace(reference, target=file.beside(reference.target)) if reference.kind == "file" else reference
