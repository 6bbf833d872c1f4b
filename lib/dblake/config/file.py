"""Parse a configuration file and record the line of every key.

Guarantee: duplicate keys are rejected, and no message quotes a line, which may hold a secret. The meaning of keys is
left to ``config.models``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dblake.base.core.errors import ConfigError


@dataclass(frozen=True)
class ConfigFile:
    """A parsed file and the line number of each dotted key."""

    path: Path
    content: dict[str, Any]
    lines: dict[str, int]

    @classmethod
    def of(cls, context: object) -> ConfigFile:
        """Return the file under validation; without one, an empty file in the working folder."""
        return context if isinstance(context, cls) else cls(Path("configuration"), {}, {})

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Parse a file. Raises ConfigError if it cannot be read, is not YAML or repeats a key."""
        return _read(path)

    def where(self, key: str) -> str:
        """Return ``file:line: key``, with the line of the nearest enclosing key if the file lacks this one."""
        near = key
        while near and near not in self.lines:
            near = near.rpartition(".")[0]
        return f"{self.path}:{self.lines[near]}: {key}" if near else f"{self.path}: {key}"

    def beside(self, path: str) -> str:
        """Return the absolute path; relative paths start at the file's folder. Raises ValueError for ``~unknown``."""
        try:
            return os.path.abspath(self.path.parent / Path(path).expanduser())
        except RuntimeError:
            raise ValueError(f"unknown user in {path.partition('/')[0]}") from None


def _read(path: Path) -> ConfigFile:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"the configuration file {path} cannot be read: {reason}",
            next_step="name a readable file with --conf; conf/postgres.yaml is one to start from",
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}: the file has no keys", next_step="start from conf/postgres.yaml")
        lines: dict[str, int] = {}
        for key, line in _keys(root, ""):
            if key in lines:
                raise ConfigError(f"{path}:{line}: duplicate key {key}", next_step="remove one of the two")
            lines[key] = line
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        # Neither str(error) nor its snippet: both quote the line, which may hold a secret.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}", next_step="correct that line") from None
    except RecursionError:
        raise ConfigError(
            f"{path}: a YAML anchor refers to itself", next_step="write the value out, without & and *"
        ) from None
    except (yaml.YAMLError, ValueError):
        raise ConfigError(
            f"{path}: not YAML", next_step="search for control characters, a wrong encoding and impossible dates"
        ) from None
    return ConfigFile(path, content, lines)


def _keys(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield every dotted key and list index of a node with its line number."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            yield dotted, key.start_mark.line + 1
            yield from _keys(value, dotted + ".")
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{prefix}{index}", value.start_mark.line + 1
