"""Masked columns: their values are in no file, and windows are resolved as if nothing were masked."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.base.core.errors import PrerequisitesNotMet, Unsupported
from dblake.base.core.mask_rules import Rule
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from dblake.ingest.mask.masks import Masks
from dblake.ingest.mask.source import MaskedSource
from tests.support.backends import Backend, Row
from tests.support.lake import CaptureLake
from tests.support.leaks import find_leaks

PEOPLE, LOGINS, OPEN = "public.people", "public.logins", "public.open"
SECRET = "SECRET"
LONG = "a long note " * 1000

# The output of `openssl dgst -sha256 -hmac KEY` for each value.
KEY = b"a key of 16 bytes or more"
HASHED = {
    "one@SECRET": "05e23a919019cbc2420c23e93918c80f4e15984fa3a89ce799f5922fd23f06aa",
    "uno@SECRET": "30c3bfcfc97b321970a40e4c69f6821bf65e7e72843f3b6c908f680a7a20465d",
    "two@SECRET": "3ef20583d0a9d3d16c0e5e2d5dbf7b8818b87e765bbab6828f53d19864e4f166",
    "three@SECRET": "fbc35c7e84e312dcce8d1e7897e7f1a83e030f99a312dc7a527fad0f58c5b2ab",
    "four@SECRET": "d06659f7d83c885aec57abab0e4d116dbed120a743833d61659316c04d7057ac",
    "five@SECRET": "de52558f2a1910ea45d38504275d113e44cdc07de72bee2205adeb56a9243dce",
}
AGE_12 = "b1a136ce9f95b8dcccdcf74d50568806da6fc7f21c1524afc16db56946fe7550"

ON_PEOPLE = {
    "public.people": {
        "email": Rule("hash"), "age": Rule("hash"), "phone": Rule("drop"), "name": Rule("truncate", 2),
    },
}
ON_LOGINS = {"public.log*": {"login": Rule("hash")}}


def masked(source: Source, rules: dict[str, dict[str, Rule]]) -> Source:
    return MaskedSource(source, Masks(rules, KEY, text="text"))


def person(number: str, email: str, name: str) -> Row:
    return {"id": number, "email": email, "phone": f"SECRET-{number}", "name": name, "age": "12", "note": LONG}


def landed(number: str, email: str, name: str | None) -> Row:
    return {"id": number, "email": HASHED[email], "name": name, "age": AGE_12, "note": LONG}


def create_people(backend: Backend) -> None:
    backend.create(TableSchema(PEOPLE, (
        Column("id", "integer", False, 1), Column("email", "text"), Column("phone", "text"), Column("name", "text"),
        Column("age", "integer"), Column("note", "text"),
    )), toasted=["note"])
    with backend.begin() as t:
        t.insert(PEOPLE, person("1", "one@SECRET", "Änne SECRET"))
        t.insert(PEOPLE, person("2", "two@SECRET", "\t\\SECRET"))
        t.insert(PEOPLE, person("3", "three@SECRET", "x"))
        t.insert(PEOPLE, person("4", "four@SECRET", "🙂🙂SECRET"))


@pytest.mark.parity
def test_masked_values_are_in_no_file(backend: Backend, lake: CaptureLake, tmp_path: Path) -> None:
    create_people(backend)
    backend.create(TableSchema(OPEN, (Column("id", "integer", False, 1), Column("v", "text"))))
    with backend.begin() as t:
        t.insert(OPEN, {"id": "1", "v": "open"})
    source = masked(backend.source("public.*"), ON_PEOPLE)

    def before_the_read() -> None:
        with backend.begin() as t:
            t.update(PEOPLE, {"id": "1"}, {"email": "uno@SECRET"})
            t.insert(OPEN, {"id": "2", "v": "beside"})
            t.delete(PEOPLE, {"id": "2"})

    def after_the_read() -> None:
        with backend.begin() as t:
            t.insert(PEOPLE, person("5", "five@SECRET", "Five"))
            t.update(PEOPLE, {"id": "4"}, {"id": "40", "phone": "SECRET-40", "note": LONG})

    lake.dump(PEOPLE, OPEN)
    lake.capture(source, steps={("low", PEOPLE): before_the_read, ("read", PEOPLE): after_the_read})
    assert lake.state(PEOPLE) == {
        ("1",): landed("1", "uno@SECRET", "Än"), ("3",): landed("3", "three@SECRET", "x"),
        ("40",): landed("40", "four@SECRET", "🙂🙂"), ("5",): landed("5", "five@SECRET", "Fi"),
    }
    changes = [(e.op, e.key and e.key[0]) for e in lake.reconciled()[0] if e.table == PEOPLE]
    # Only 3 comes from the chunk: the log has a change of every other key.
    assert sorted(changes) == sorted([("u", "1"), ("d", "2"), ("c", "5"), ("d", "4"), ("c", "40"), ("r", "3"),
                                   *[("f", "1")] * (("f", "1") in changes)])
    assert lake.state(OPEN) == {("1",): {"id": "1", "v": "open"}, ("2",): {"id": "2", "v": "beside"}}

    with backend.begin() as t:
        t.update(PEOPLE, {"id": "3"}, {"name": None})
        t.update(PEOPLE, {"id": "5"}, {"phone": "SECRET"})
        t.delete(PEOPLE, {"id": "1"})
    lake.capture(masked(backend.source("public.*"), ON_PEOPLE))
    assert lake.state(PEOPLE) == {
        ("3",): landed("3", "three@SECRET", None), ("40",): landed("40", "four@SECRET", "🙂🙂"),
        ("5",): landed("5", "five@SECRET", "Fi"),
    }
    with backend.begin() as t:
        t.truncate(PEOPLE)
    with backend.begin() as t:
        t.insert(PEOPLE, person("6", "two@SECRET", "S"))
    lake.capture(masked(backend.source("public.*"), ON_PEOPLE))
    assert lake.state(PEOPLE) == {("6",): landed("6", "two@SECRET", "S")}
    schemas = [s for s in lake.schemas(lake.landing()).values() if s.table == PEOPLE]
    assert {c.name: (c.type, c.key) for s in schemas for c in s.columns if c.name in ("email", "phone", "name")} == {
        "email": ("text", None), "name": ("text", None),
    }
    assert find_leaks(tmp_path, SECRET) == []


def test_masked_column_not_sent_stays_missing(backend: Backend, lake: CaptureLake) -> None:
    create_people(backend)
    source = masked(backend.source("public.*"), {"public.people": {"note": Rule("hash"), "phone": Rule("drop")}})
    with backend.begin() as t:
        t.update(PEOPLE, {"id": "1"}, {"email": "new"})
    lake.capture(source)
    [change] = [row for row in lake.decoded() if row["op"] == "u"]
    assert (change["partial"], sorted(change["after"])) == (True, ["age", "email", "id", "name"])


def test_hashed_key_pages_and_is_in_no_file(backend: Backend, lake: CaptureLake, tmp_path: Path) -> None:
    backend.create(TableSchema(LOGINS, (Column("login", "text", False, 1), Column("v", "text"))))
    names = list(HASHED)
    with backend.begin() as t:
        for name in names[:5]:
            t.insert(LOGINS, {"login": name, "v": "old"})
    source = masked(backend.source("public.*"), ON_LOGINS)

    def change() -> None:
        with backend.begin() as t:
            t.update(LOGINS, {"login": "one@SECRET"}, {"v": "new"})
            t.update(LOGINS, {"login": "two@SECRET"}, {"login": "five@SECRET"})

    lake.dump(LOGINS)
    lake.capture(source, steps={("low", LOGINS): change}, chunk_size=2)
    assert lake.state(LOGINS) == {
        (HASHED[name],): {"login": HASHED[name], "v": "new" if name.startswith("one") else "old"}
        for name in names if not name.startswith("two")
    }
    [dump] = lake.dumps()
    assert (dump["state"], dump["rows"]) == ("done", 5)
    assert dump["chunks"] > 2, "the table must be read in several chunks"
    assert find_leaks(tmp_path, SECRET) == []


def test_rows_cannot_be_requested_by_masked_key(backend: Backend, lake: CaptureLake) -> None:
    backend.create(TableSchema(LOGINS, (Column("login", "text", False, 1), Column("v", "text"))))
    with backend.begin() as t:
        t.insert(LOGINS, {"login": "one", "v": "old"})
    lake.dump(LOGINS, keys=[("one",)])
    lake.capture(masked(backend.source("public.*"), ON_LOGINS))
    [dump] = lake.dumps()
    assert (dump["state"], dump["error"]) == (
        "failed", "table public.logins: its key is masked, so rows cannot be requested by key"
    )


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"public.people": {"mail": Rule("hash")}}, "table public.people has no column mail"),
        ({"public.people": {"Email": Rule("drop")}}, 'table public.people has no column "Email"'),
        ({"public.missing": {"email": Rule("drop")}}, "no captured table matches public.missing"),
        ({"public.people": {"id": Rule("drop")}}, "public.people.id is of the primary key, which can be hashed only"),
        ({"public.*": {"id": Rule("truncate", 3)}}, "public.people.id is of the primary key, which can be hashed"),
        ({"public.*": {"name": Rule("drop")}, "*.people": {"name": Rule("hash")}},
         "two patterns differ about public.people.name"),
    ],
)  # fmt: skip
def test_invalid_mask_rules_are_rejected_before_landing(
    backend: Backend, lake: CaptureLake, rules: dict[str, dict[str, Rule]], message: str
) -> None:
    create_people(backend)
    source = masked(backend.source("public.people"), rules)
    [check] = [check for check in source.preflight() if check.check == "masks"]
    assert (check.ok, check.fix) == (False, "correct `mask` in the configuration")
    assert message in check.detail
    with pytest.raises((PrerequisitesNotMet, Unsupported), match=r"masks: |can be hashed only"):
        lake.capture(source)
    assert not Path(lake.paths.landing).exists() or lake.landing().num_rows == 0


def test_rule_applies_to_column_added_later(backend: Backend, lake: CaptureLake) -> None:
    create_people(backend)
    backend.source("public.*")
    with backend.begin() as t:
        t.update(PEOPLE, {"id": "1"}, {"email": "before"})
    backend.add_column(PEOPLE, Column("city", "text"), "SECRET")
    with backend.begin() as t:
        t.update(PEOPLE, {"id": "1"}, {"city": "SECRET-2"})
    lake.capture(masked(backend.source("public.*"), {"public.people": {"city": Rule("truncate", 1)}}))
    assert [row["after"].get("city") for row in lake.decoded() if row["op"] == "u"] == [None, "S"]
