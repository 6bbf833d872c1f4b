"""The ZooKeeper form of the ``progress`` setting: where documents and lease are kept, and how to get there.

::

    zookeeper://host:2181,host2:2181/dblake?session_timeout=10
        &user=NAME&password=${env:NAME}                    digest: nodes are made for this user alone
        &tls=verify&ca=PATH&certificate=PATH&key=PATH      TLS, and who we are if the server asks

Promises: what was parsed is possible, and says itself as a URL again without showing a secret. Talking to ZooKeeper is
``zookeeper``'s business.
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
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 120.0


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
        """Reads the URL. Raises ValueError, which says what is wrong and never quotes a value."""
        match = _URL.match(url)
        if not match or not _ROOT.match(match[2] or ""):
            raise ValueError("must be zookeeper://host:port,…/path, the path of letters, digits, _, - and .")
        given = _parameters(match[3] or "")
        known = [field.name for field in fields(cls)][2:]
        for name in given:
            if name not in known:
                raise ValueError(f"zookeeper has no parameter {name}; there are {', '.join(known)}")
        values: dict[str, object] = dict(given)
        if "session_timeout" in given:
            values["session_timeout"] = _seconds(given["session_timeout"])
        place = cls(_hosts(match[1]), match[2], **values)  # type: ignore[arg-type]
        place._check()
        return place

    def _check(self) -> None:
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password come together")
        if ":" in self.user:
            raise ValueError("user holds a colon, which ends a name in ZooKeeper's digests")
        if self.password and not Reference.parse(self.password, "progress"):
            raise ValueError("password must be a reference, ${env:NAME} or ${file:PATH}; a literal secret is refused")
        if self.tls not in ("disable", "require", "verify"):
            raise ValueError("tls must be verify, require or disable")
        if self.tls == "disable" and (self.ca or self.certificate or self.key):
            raise ValueError("ca, certificate and key only make sense with tls=verify or tls=require")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key come together")

    def beside(self, absolute: Callable[[str], str]) -> Self:
        """The same with every path in it made absolute."""
        secret = Reference.parse(self.password, "progress")
        return replace(
            self,
            password=f"${{file:{absolute(secret.target)}}}" if secret and secret.kind == "file" else self.password,
            ca=self.ca and absolute(self.ca),
            certificate=self.certificate and absolute(self.certificate),
            key=self.key and absolute(self.key),
        )

    def secret(self) -> str:
        """The password as it is now; empty if there is none."""
        reference = Reference.parse(self.password, "progress")
        return reference.look_up() if reference else ""

    def __str__(self) -> str:
        pairs = [
            (field.name, value) for field in fields(self)[2:] if (value := getattr(self, field.name)) != field.default
        ]
        query = "&".join(f"{name}={_spelled(value)}" for name, value in pairs)
        return f"zookeeper://{self.hosts}{self.root}" + (f"?{query}" if query else "")


def _hosts(text: str) -> str:
    found = [_HOST.match(part) for part in text.split(",")]
    if not all(found):
        raise ValueError("must be zookeeper://host:port,…/path")
    return ",".join(f"{match[1]}:{match[2] or 2181}" for match in found if match)


def _parameters(text: str) -> dict[str, str]:
    # Plus signs are meant: nobody thinks of a path in a configuration file as a form's field.
    pairs = parse_qsl(text.replace("+", "%2B"), keep_blank_values=True)
    given = dict(pairs)
    if len(given) != len(pairs):
        raise ValueError("a parameter stands there twice")
    if not all(given.values()):
        raise ValueError("a parameter has no value")
    return given


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise ValueError(f"session_timeout must be {_LEAST_SECONDS:g} to {_MOST_SECONDS:g} seconds")
    return seconds


def _spelled(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else quote(str(value), safe="/${}:")
