"""Write the first configuration file of a source, from the commented example of its kind of database.

Place: before ``load``; the job ``init`` calls it. Guarantee: every line of the example stays, with its comment, and
the values that the database's URL gives replace the example's. No password is in the text. Whether the values can
work is left to ``load`` and to ``preflight``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import SplitResult, unquote, urlsplit

from dblake.base.core.errors import UsageError
from dblake.config.source import DEFAULT_PORTS

_KINDS = {"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mariadb"}
_EXAMPLES = {"postgres": "postgres.yaml", "mysql": "mysql.yaml", "mariadb": "mysql.yaml"}
_FORM = "postgresql://USER@HOST:PORT/DATABASE, mysql://… or mariadb://…"
_LINE = re.compile(r"(?P<indent> *)(?P<key>\w+): *(?P<value>[^#]*?)(?P<comment> +#.*)?")
_PLAIN = re.compile(r"\$\{(?:env|file):[\w./-]+\}|(?!(?:true|false|yes|no|on|off|y|n|null)$)[A-Za-z_/][\w./-]*", re.I)
"""Text that YAML reads as itself; all other is quoted."""


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database's URL in parts. ``password`` is None if the URL has none; ``database`` may be empty on MySQL."""

    kind: str
    host: str
    port: int
    user: str
    database: str
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> DatabaseUrl:
        """Parse ``postgresql://user:password@host:port/database``. Raises UsageError, without the URL's password."""
        try:
            parts = urlsplit(url)
            kind, port = _KINDS.get(parts.scheme.partition("+")[0]), parts.port
        except ValueError as error:
            raise UsageError("the database's URL cannot be parsed", next_step=f"write it as {_FORM}") from error
        if parts.query:
            raise UsageError(
                "the database's URL has options after ?", next_step="leave them out; give --tls for how to connect"
            )
        missing = _missing(kind, parts)
        if kind is None or missing:
            raise UsageError(f"the database's URL has no {missing}", next_step=f"write it as {_FORM}")
        password = None if parts.password is None else unquote(parts.password)
        database = unquote(parts.path.strip("/"))
        port, user = port or DEFAULT_PORTS[kind], unquote(parts.username or "")
        return cls(kind, parts.hostname or "", port, user, database, password)


def _missing(kind: str | None, parts: SplitResult) -> str:
    if kind is None:
        return "kind of database before ://"
    if not parts.hostname:
        return "host"
    if not parts.username:
        return "user"
    return "database" if kind == "postgres" and not parts.path.strip("/") else ""


def suggest_name(database: str) -> str:
    """Return a name of a source made from a database's name.

    >>> suggest_name("Shop.EU")
    'shop-eu'
    """
    return re.sub(r"[^a-z0-9_-]+", "-", database.lower()).strip("-_")[:40] or "source"


def example_of(kind: str) -> PurePosixPath:
    """Return the path of the example, relative to the application's home."""
    return PurePosixPath("conf") / _EXAMPLES[kind]


def draft_config(
    example: str, url: DatabaseUrl, *, name: str, password: str, tables: Sequence[str] = (), tls: str | None = None,
    warehouse: str = "warehouse", others: Mapping[str, Mapping[str, object]] | None = None,
) -> str:
    """Return the text of the configuration file.

    ``example`` is the example's text, ``password`` a reference such as ``${env:NAME}``. ``tables`` are patterns;
    without them it is every table of the database, on PostgreSQL of the schema ``public``. ``others`` are values of
    other sections, by section and key.
    """
    patterns = list(tables) or _all_tables(url)
    source: dict[str, object] = {
        "name": name, "type": url.kind, "host": url.host, "port": url.port, "user": url.user, "password": password,
        "tables": patterns,
    }
    if url.kind == "postgres":
        source["database"] = url.database
    if tls:
        source["tls"] = tls
    paths = {"warehouse": warehouse, "progress": "file:progress"}
    return _replace(example, {"": paths, "source": source, **(others or {})})


def _all_tables(url: DatabaseUrl) -> list[str]:
    if url.kind == "postgres":
        return ["public.*"]
    return [f"{url.database}.*"] if url.database else ["*.*"]


def _replace(example: str, values: Mapping[str, Mapping[str, object]]) -> str:
    """Replace values by section and key; a comment keeps its column where the value leaves it room."""
    lines, section = [], ""
    for line in example.splitlines():
        match = _LINE.fullmatch(line)
        if match and not match["indent"]:
            section = "" if match["value"] else match["key"]
        if match and match["key"] in values.get(section, {}):
            lines.append(_replace_value(match, values[section][match["key"]]))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _replace_value(line: re.Match[str], value: object) -> str:
    start = f"{line['indent']}{line['key']}: {_write(value)}"
    comment = line["comment"].strip() if line["comment"] else ""
    column = line.end() - len(comment)
    return f"{start:<{column - 1}} {comment}".rstrip()


def _write(value: object) -> str:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    text = "null" if value is None else str(value)
    is_plain = not isinstance(value, str) or _PLAIN.fullmatch(text)
    return text if is_plain else json.dumps(text, ensure_ascii=False)
