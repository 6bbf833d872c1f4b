"""A configuration file as parsed: its content, and on which line every key stands.

What the keys mean is ``config``'s business. Promises that a key which stands there twice is refused, and that no
message quotes a line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dblake.core.errors import ConfigError


@dataclass(frozen=True)
class ConfigFile:
    """A parsed file, and the line each dotted key stands on."""

    path: Path
    content: dict[str, Any]
    lines: dict[str, int]

    @classmethod
    def of(cls, context: object) -> ConfigFile:
        """The file being checked; for a configuration made in code, the working folder stands for its folder."""
        return context if isinstance(context, cls) else cls(Path("configuration"), {}, {})

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Parses a file. Raises ConfigError, which never quotes it, since it may hold a secret."""
        return _read(path)

    def where(self, key: str) -> str:
        """``file:line: key``, with the line of the nearest enclosing key if this one is not there."""
        near = key
        while near and near not in self.lines:
            near = near.rpartition(".")[0]
        return f"{self.path}:{self.lines[near]}: {key}" if near else f"{self.path}: {key}"

    def beside(self, path: str) -> str:
        """An absolute path; a relative one starts at this file's folder."""
        try:
            return os.path.abspath(self.path.parent / Path(path).expanduser())
        except RuntimeError:
            raise ValueError("there is no user of that name, whose home it would be") from None


def _read(path: Path) -> ConfigFile:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise ConfigError(
            f"the configuration file {path} cannot be read: {reason}",
            next_step="name a readable file with --conf; conf/postgres.yaml is one to start from",
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}: holds no keys", next_step="start from conf/postgres.yaml")
        lines: dict[str, int] = {}
        for key, line in _keys(root, ""):
            if key in lines:
                raise ConfigError(f"{path}:{line}: {key} stands there twice", next_step="remove one of them")
            lines[key] = line
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        # Neither str(error) nor its snippet: they quote the line, which may hold a secret.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}", next_step="mend that line") from None
    except RecursionError:
        raise ConfigError(f"{path}: a value holds itself", next_step="write it out, without & and *") from None
    except (yaml.YAMLError, ValueError):
        raise ConfigError(
            f"{path}: not YAML", next_step="look for control characters, a wrong encoding and dates that there are not"
        ) from None
    return ConfigFile(path, content, lines)


def _keys(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            yield dotted, key.start_mark.line + 1
            yield from _keys(value, dotted + ".")
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{prefix}{index}", value.start_mark.line + 1
