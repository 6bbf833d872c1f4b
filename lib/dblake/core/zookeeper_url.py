"""The ZooKeeper form of the ``progress`` setting: where documents and lease are stored, and how to connect.

::

    zookeeper://host:2181,host2:2181/dblake?session_timeout=10
        &user=NAME&password=${env:NAME}                    digest: only this user may access the nodes
        &tls=verify&ca=PATH&certificate=PATH&key=PATH      TLS; the client's own certificate

Guarantee: a parsed URL is valid, and its text never shows a secret. Connecting is for ``capture.zookeeper``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Self
from urllib.parse import parse_qsl, quote

from dblake.core.secret import Reference

_URL = re.compile(r"zookeeper://([^/?#]+)(/[^?#]*)?(?:\?([^#]*))?\Z")
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?\Z")
_ROOT = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+\Z")
_MIN_SESSION_SECONDS, _MAX_SESSION_SECONDS = 1.0, 120.0


@dataclass(frozen=True, slots=True)
class ZookeeperUrl:
    """A folder of nodes in a ZooKeeper ensemble. The fields after ``root`` are the URL's parameters.

    >>> ZookeeperUrl.parse("zookeeper://a,b:2182/dblake?session_timeout=4").hosts
    'a:2181,b:2182'
    """

    hosts: str
    root: str
    session_timeout: float = 10.0
    user: str = ""
    password: str = ""
    """A reference, ``${env:NAME}`` or ``${file:PATH}``."""
    tls: Literal["disable", "require", "verify"] = "disable"
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse the URL. Raises ValueError, whose message names the fault and never quotes a value."""
        match = _URL.match(url)
        if not match or not _ROOT.match(match[2] or ""):
            raise ValueError("must be zookeeper://host:port,…/path, with letters, digits, _, - and . in the path")
        given = _parameters(match[3] or "")
        supported = [field.name for field in fields(cls)][2:]
        for name in given:
            if name not in supported:
                raise ValueError(f"zookeeper has no parameter {name}; supported are {', '.join(supported)}")
        values: dict[str, object] = dict(given)
        if "session_timeout" in given:
            values["session_timeout"] = _seconds(given["session_timeout"])
        parsed = cls(_hosts(match[1]), match[2], **values)  # type: ignore[arg-type]
        parsed._validate()
        return parsed

    def _validate(self) -> None:
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password must be given together")
        if ":" in self.user:
            raise ValueError("user contains a colon, which ends a name in ZooKeeper's digests")
        if self.password and not Reference.parse(self.password, "progress"):
            raise ValueError("password must be a reference, ${env:NAME} or ${file:PATH}; a literal secret is refused")
        if self.tls not in ("disable", "require", "verify"):
            raise ValueError("tls must be verify, require or disable")
        if self.tls == "disable" and (self.ca or self.certificate or self.key):
            raise ValueError("ca, certificate and key require tls=verify or tls=require")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key must be given together")

    def resolve_paths(self, absolute: Callable[[str], str]) -> Self:
        """Return a copy with ``absolute`` applied to every path."""
        secret = Reference.parse(self.password, "progress")
        return replace(
            self,
            password=f"${{file:{absolute(secret.target)}}}" if secret and secret.kind == "file" else self.password,
            ca=self.ca and absolute(self.ca),
            certificate=self.certificate and absolute(self.certificate),
            key=self.key and absolute(self.key),
        )

    def read_password(self) -> str:
        """Resolve the password; empty if there is none. Raises ConfigError as ``Reference.resolve`` does."""
        reference = Reference.parse(self.password, "progress")
        return reference.resolve() if reference else ""

    def __str__(self) -> str:
        pairs = [
            (field.name, value) for field in fields(self)[2:] if (value := getattr(self, field.name)) != field.default
        ]
        query = "&".join(f"{name}={_quoted(value)}" for name, value in pairs)
        return f"zookeeper://{self.hosts}{self.root}" + (f"?{query}" if query else "")


def _hosts(text: str) -> str:
    matches = [_HOST.match(part) for part in text.split(",")]
    if not all(matches):
        raise ValueError("must be zookeeper://host:port,…/path")
    return ",".join(f"{match[1]}:{match[2] or 2181}" for match in matches if match)


def _parameters(text: str) -> dict[str, str]:
    # A plus sign is literal here: the URL is not a form field, in which it would be a blank.
    pairs = parse_qsl(text.replace("+", "%2B"), keep_blank_values=True)
    given = dict(pairs)
    if len(given) != len(pairs):
        raise ValueError("duplicate parameter")
    if not all(given.values()):
        raise ValueError("a parameter has no value")
    return given


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_SESSION_SECONDS <= seconds <= _MAX_SESSION_SECONDS:
        raise ValueError(f"session_timeout must be {_MIN_SESSION_SECONDS:g} to {_MAX_SESSION_SECONDS:g} seconds")
    return seconds


def _quoted(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else quote(str(value), safe="/${}:")
