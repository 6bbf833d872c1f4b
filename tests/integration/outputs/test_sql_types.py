"""Every type of every source in every kind of target: a value arrives equal, or its event is rejected by name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pytest

from dblake.base.core.errors import EventRejected
from dblake.base.core.schema import Column
from dblake.payloads.formats.mysql_types import type_from_catalog
from tests.support import mysql_values, postgres_values
from tests.support.parity import Case
from tests.support.sql_delivery import SCHEMA
from tests.support.sql_places import Place
from tests.support.streams import ID, Stream

_DOMAINS = {"positive": "integer", "price": "numeric(6,2)", "words": "text[]"}

# NaN, infinity, years before 1 and after 9999, zero dates, the character NUL; MySQL's JSON has no larger numbers.
_DOCUMENTED = re.compile(r"^-?(NaN|Infinity)$| BC$|^\d{5,}-|^0000-|-00|\0|1e400", re.IGNORECASE)


def _postgres_types() -> list[tuple[str, list[str]]]:
    return [(_DOMAINS.get(case.type, case.type), _texts(case)) for case in postgres_values.CASES]


def _mysql_types(flavour: str) -> list[tuple[str, list[str]]]:
    cases = mysql_values.cases("mariadb" if flavour == "mariadb" else "mysql")
    return [(_spelled(case.type, flavour), _texts(case)) for case in cases]


def _texts(case: Case) -> list[str]:
    return [value.text for value in case.values if not value.undecoded]


def _spelled(declared: str, flavour: str) -> str:
    """Return a declared type as schemas spell it."""
    kind, _, charset = declared.partition(" character set ")
    kind = kind.removesuffix(" NULL").replace("boolean", "tinyint(1)")
    is_text = re.match(r"(var)?char|.*text|enum|set", kind)
    return type_from_catalog(kind, charset or ("utf8mb4" if is_text else None), mariadb=flavour == "mariadb")


def _deliver(place: Place, types: Sequence[tuple[str, list[str]]]) -> dict[str, list[str]]:
    """Deliver a table per type; return the rejected texts by type. All others must arrive."""
    output = place.output()
    output.open()
    rejected: dict[str, list[str]] = {}
    for number, (kind, texts) in enumerate(types):
        stream = Stream(ID, Column("v", kind), table=f"public.t{number}")
        for key, text in enumerate(texts):
            stream.insert(id=str(key), v=text)
            stream.commit()
        left = list(stream.transactions)
        while left:
            try:
                output.write(left, left[-1].checkpoint)
                break
            except EventRejected as error:
                assert "column v" in error.what
                (bad,) = [t for t in left if t.position == error.position]
                left.remove(bad)
                rejected.setdefault(kind, []).append((bad.events[0].after or {})["v"] or "")
        sent = {int((t.events[0].key or {})["id"] or 0): (t.events[0].after or {})["v"] for t in left}
        found = dict(place.rows(f"SELECT id, {_as_text(place, kind)} FROM {SCHEMA}.t{number}")) if left else {}
        assert set(found) == set(sent), kind
        for key, value in sent.items():
            assert _is_same(kind, value or "", found[key]), (kind, (value or "")[:80], str(found[key])[:80])
    output.close()
    return rejected


def _as_text(place: Place, kind: str) -> str:
    """Return the SQL that makes a column's canonical text."""
    if place.flavour == "postgres":
        # Not a cast, which writes the mask of every inet and trims character(n).
        return "concat(v)"
    if kind in ("real", "float", "double precision", "double"):
        # As text, a float has six digits only.
        return "v + 0e0"
    return "bin(v)" if kind.startswith("bit(") else "v" if _is_binary(kind) else "CAST(v AS char)"


def _is_binary(kind: str) -> bool:
    return re.fullmatch(r"bytea|(?:var)?binary.*|.*blob", kind) is not None


def _is_same(kind: str, text: str, found: Any) -> bool:
    """Return whether a target's text denotes the source's value."""
    if isinstance(found, bytes):
        found = "\\x" + found.hex()
    if text == found:
        return True
    if kind == "json":
        return bool(json.loads(text) == json.loads(found))
    if kind == "boolean":
        return found in ({"t": ("1", "true"), "f": ("0", "false")}[text])
    if kind in ("real", "float", "double precision", "double"):
        one = np.float32 if kind in ("real", "float") else np.float64
        return bool(one(text) == one(found))
    if kind.startswith("bit("):
        return int(text, 2) == int(found, 2)
    if kind.startswith(("timestamp", "datetime")):
        return _trimmed(text.removesuffix("+00")) == _trimmed(found.removesuffix("+00"))
    if kind.startswith("time"):
        # PostgreSQL's interval has no zero hours in front and a sign for all of it.
        return _trimmed(text) == _trimmed(found)
    try:
        return Decimal(text) == Decimal(found)
    except InvalidOperation:
        return False


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _undocumented(rejected: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return the rejected texts that the documentation does not name as such."""
    return [(kind, text[:80]) for kind, texts in rejected.items() for text in texts if not _DOCUMENTED.search(text)]


def test_postgres_types_arrive_in_postgres(on_postgres: Place) -> None:
    assert _deliver(on_postgres, _postgres_types()) == {}


def test_postgres_types_arrive_in_mariadb(on_mariadb: Place) -> None:
    rejected = _deliver(on_mariadb, _postgres_types())
    assert rejected and not _undocumented(rejected)


@pytest.mark.slow
def test_postgres_types_arrive_in_mysql(on_mysql: Place) -> None:
    rejected = _deliver(on_mysql, _postgres_types())
    assert rejected and not _undocumented(rejected)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["mariadb", "mysql"])
def test_mysql_types_arrive_in_postgres(on_postgres: Place, flavour: str) -> None:
    rejected = _deliver(on_postgres, _mysql_types(flavour))
    assert rejected and not _undocumented(rejected)


@pytest.mark.slow
def test_mysql_types_arrive_in_own_kind(on_mariadb: Place) -> None:
    assert _deliver(on_mariadb, _mysql_types("mariadb")) == {}
