"""The ZooKeeper form of the ``progress`` setting: where documents and lease are stored, and how to connect.

::

    zookeeper://host:2181,host2:2181/dblake?session_timeout=10
        &user=NAME&password=${env:NAME}                    digest authentication: only this user can access the nodes
        &tls=verify&ca=PATH&certificate=PATH&key=PATH      TLS, with a client certificate if the server requires one
        &tls=disable                                       plain text; a password must have one or the other

Guarantee: a parsed URL is consistent, and its text is a URL again that shows no secret. Connecting to ZooKeeper is left
to ``capture.zookeeper``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Self
from urllib.parse import parse_qsl, quote

from dblake.base.core.secret import Reference

_URL = re.compile(r"zookeeper://([^/?#]+)(/[^?#]*)?(?:\?([^#]*))?\Z")
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?\Z")
_ROOT = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+\Z")
_MIN_SECONDS, _MAX_SECONDS = 1.0, 120.0


@dataclass(frozen=True, slots=True)
class ZookeeperUrl:
    """A root node in a ZooKeeper ensemble. The fields after ``root`` are the URL's parameters.

    ``session_timeout`` is in seconds; ``password`` is a reference, ``${env:NAME}`` or ``${file:PATH}``.

    >>> ZookeeperUrl.parse("zookeeper://a,b:2182/dblake?session_timeout=4").hosts
    'a:2181,b:2182'
    """

    hosts: str
    root: str
    session_timeout: float = 10.0
    user: str = ""
    password: str = ""
    tls: Literal["disable", "require", "verify"] = "disable"
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL. Raises ValueError, which names the fault and never quotes a value."""
        match = _URL.match(url)
        if not match or not _ROOT.match(match[2] or ""):
            raise ValueError("must be zookeeper://host:port,…/path, the path of letters, digits, _, - and .")
        parameters = _parameters(match[3] or "")
        names = [field.name for field in fields(cls)][2:]
        for name in parameters:
            if name not in names:
                raise ValueError(f"zookeeper has no parameter {name}; there are {', '.join(names)}")
        values: dict[str, object] = dict(parameters)
        if "session_timeout" in parameters:
            values["session_timeout"] = _seconds(parameters["session_timeout"])
        parsed = cls(_hosts(match[1]), match[2], **values)  # type: ignore[arg-type]
        parsed._validate()
        if parsed.user and "tls" not in parameters:
            raise ValueError("a password needs tls=verify, or tls=disable to send it in plain text")
        return parsed

    def _validate(self) -> None:
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password must be set together")
        if ":" in self.user:
            raise ValueError("user must not contain a colon: it separates name and password in ZooKeeper's digests")
        if self.password and not Reference.parse(self.password, "progress"):
            raise ValueError("password must be a reference, ${env:NAME} or ${file:PATH}; a literal secret is rejected")
        if self.tls not in ("disable", "require", "verify"):
            raise ValueError("tls must be verify, require or disable")
        if self.tls == "disable" and (self.ca or self.certificate or self.key):
            raise ValueError("ca, certificate and key require tls=verify or tls=require")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key must be set together")

    def resolve_paths(self, absolute: Callable[[str], str]) -> Self:
        """Return the URL with ``absolute`` applied to every path in it."""
        secret = Reference.parse(self.password, "progress")
        return replace(
            self,
            password=f"${{file:{absolute(secret.target)}}}" if secret and secret.kind == "file" else self.password,
            ca=self.ca and absolute(self.ca),
            certificate=self.certificate and absolute(self.certificate),
            key=self.key and absolute(self.key),
        )

    def read_password(self) -> str:
        """Read the password; return "" if none is set. Raises ConfigError if the reference cannot be read."""
        reference = Reference.parse(self.password, "progress")
        return reference.resolve() if reference else ""

    def __str__(self) -> str:
        """Return the URL with its parameters that differ from the defaults."""
        pairs = [
            (field.name, value) for field in fields(self)[2:]
            if (value := getattr(self, field.name)) != field.default or (field.name == "tls" and self.user)
        ]
        query = "&".join(f"{name}={_quoted(value)}" for name, value in pairs)
        return f"zookeeper://{self.hosts}{self.root}" + (f"?{query}" if query else "")


def _hosts(text: str) -> str:
    """Return comma-separated hosts with the default port 2181 where none is given."""
    matches = [_HOST.match(part) for part in text.split(",")]
    if not all(matches):
        raise ValueError("must be zookeeper://host:port,…/path")
    return ",".join(f"{match[1]}:{match[2] or 2181}" for match in matches if match)


def _parameters(text: str) -> dict[str, str]:
    # A plus sign is literal: a path in a configuration file is not a form field.
    pairs = parse_qsl(text.replace("+", "%2B"), keep_blank_values=True)
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        raise ValueError("duplicate parameter")
    if not all(parameters.values()):
        raise ValueError("a parameter has no value")
    return parameters


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        raise ValueError(f"session_timeout must be {_MIN_SECONDS:g} to {_MAX_SECONDS:g} seconds")
    return seconds


def _quoted(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else quote(str(value), safe="/${}:")
