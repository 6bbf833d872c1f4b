"""The values of the heartbeat row: a chain in which each heartbeat names the one before it.

A value is the heartbeat's own name and the name of the value that it replaced, which the database itself inserts. So
the log alone shows whether one heartbeat follows another, also where several lakes write to the row of one database. A
server that was restored to an earlier state continues another chain than the one that landed.

Values of another form, as set by hand or by earlier versions, name no predecessor: they prove nothing and contradict
nothing. So do unchained heartbeats, which no row keeps: the log proves itself by having the last one in its place.
"""

from __future__ import annotations

import re
import secrets

NAME_CHARS = 18
"""Two names fill the ``varchar(36)`` of the watermark table; 72 random bits do not repeat."""
_NAME = re.compile(r"[0-9a-f]{18}")
_UNCHAINED = "-"


def new_heartbeat_name() -> str:
    """Return a name that no heartbeat has had."""
    return secrets.token_hex(NAME_CHARS // 2)


def heartbeat_name(value: str) -> str:
    """Return the own name in a row's value, whatever its form."""
    return value[:NAME_CHARS]


def chain_heartbeat(name: str, before: str) -> str:
    """Return the value of heartbeat ``name`` where it replaces the value ``before``; databases compute it in SQL."""
    return name + heartbeat_name(before)


def unchained_heartbeat(name: str) -> str:
    """Return the value of heartbeat ``name`` where no row has the one before it."""
    return name + _UNCHAINED


def is_unchained(value: str) -> bool:
    """Return True for the value of a heartbeat that no row had."""
    return value[NAME_CHARS:] == _UNCHAINED


def names_as_predecessor(value: str, before: str) -> bool | None:
    """Return whether ``value`` names the value ``before`` as the one it replaced; None if it names none."""
    if not _NAME.match(value) or is_unchained(value) or is_unchained(before):
        return None
    return value[NAME_CHARS:] == heartbeat_name(before)
