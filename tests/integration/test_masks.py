"""Masking when tables, rules, keys and processes change, on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblake.base.core.errors import PrerequisitesNotMet, Unsupported
from dblake.base.core.mask_rules import Rule, Rules
from dblake.base.core.source import Source
from dblake.config import load_config
from dblake.ingest.capture.import_request import ImportQueue
from dblake.ingest.mask.masks import Masks
from dblake.ingest.mask.source import MaskedSource
from pipelines.dump import start_tables
from tests.support.backends import PostgresBackend
from tests.support.exports import export
from tests.support.lake import CaptureLake
from tests.support.leaks import find_leaks
from tests.support.postgres import Database

T = "public.people"
KEY = b"a key of 16 bytes or more"
SECRET = "SECRET"
HASHED: Rules = {T: {"email": Rule("hash")}}


@pytest.fixture
def backend(database: Database) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(database)
    backend.run("CREATE TABLE people (id int PRIMARY KEY, email text)",
                "INSERT INTO people SELECT n, 'SECRET ' || n FROM generate_series(1, 6) n")
    yield backend
    backend.close()


def masked(backend: PostgresBackend, rules: Rules = HASHED, key: bytes = KEY) -> Source:
    return MaskedSource(backend.source("public.*"), Masks(rules, key, text="text"))


def test_renamed_masked_column_does_not_land(
    backend: PostgresBackend, tmp_path: Path
) -> None:
    lake = CaptureLake(tmp_path)
    lake.dump(T)

    def rename() -> None:
        backend.run("ALTER TABLE people RENAME email TO mail", "INSERT INTO people (id, mail) VALUES (7, 'SECRET 7')")

    with pytest.raises(Unsupported, match=r"table public\.people lacks"):
        lake.capture(masked(backend), steps={("low", T): rename})
    assert find_leaks(tmp_path, SECRET) == []
    with pytest.raises(PrerequisitesNotMet, match=r"table public\.people has no column email"):
        lake.capture(masked(backend))
    assert find_leaks(tmp_path, SECRET) == []


@pytest.mark.parametrize(("rules", "key", "expected"), [
    # The output of `openssl dgst -sha256 -hmac KEY` for "SECRET 1".
    (HASHED, b"another key of 16 bytes", "7aa97ad6ea08fc42cb35cdc0e3579b2da28139c2d8aefab1d4fa8fe61acc8598"),
    ({T: {"email": Rule("truncate", 3)}}, KEY, "SEC"),
])
def test_changed_rule_or_key_queues_dump(
    backend: PostgresBackend, tmp_path: Path, rules: Rules, key: bytes, expected: str
) -> None:
    lake = CaptureLake(tmp_path)
    lake.dump(T)
    lake.capture(masked(backend))
    lake.capture(masked(backend))
    assert len(lake.dumps()) == 1
    lake.capture(masked(backend, rules, key))
    assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]
    assert (lake.state(T)["1",]["email"] or "").startswith(expected)


def test_dump_start_rejects_masked_keys(
    backend: PostgresBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.source("public.*")
    assert backend.settings is not None
    (tmp_path / "shop.yaml").write_text(json.dumps({
        "warehouse": "./warehouse", "progress": "file:./progress",
        "source": {
            "name": "shop", "type": "postgres", "host": "127.0.0.1", "port": backend.settings.port, "tls": "disable",
            "database": backend.settings.database, "user": backend.settings.user, "password": "${env:SHOP_PASSWORD}",
            "tables": ["public.*"],
        },
        "mask": {"key": "${env:MASK_KEY}", "tables": {"public.*": {"id": "hash"}}},
    }))
    monkeypatch.setenv("SHOP_PASSWORD", backend.settings.password)
    monkeypatch.setenv("MASK_KEY", KEY.decode())
    config = load_config(tmp_path / "shop.yaml")
    with pytest.raises(Unsupported, match="its key is masked, so rows cannot be requested by key"):
        start_tables(config, [T], ["[4711]"])
    start_tables(config, [T], [])
    assert find_leaks(tmp_path, "4711") == []


def test_dump_with_hashed_key_resumes_after_crash(backend: PostgresBackend, tmp_path: Path) -> None:
    lake = CaptureLake(tmp_path)
    keyed: Rules = {T: {"id": Rule("hash"), "email": Rule("drop")}}
    lake.dump(T)
    chunks = 0

    def die_at_the_third() -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 3:
            backend.run("UPDATE people SET email = 'SECRET' WHERE id = 6")
            raise OSError("the process dies")

    with pytest.raises(OSError, match="the process dies"):
        lake.capture(masked(backend, keyed), steps={("every low", T): die_at_the_third}, chunk_size=1)
    lake.capture(masked(backend, keyed), chunk_size=1)
    [dump] = lake.dumps()
    assert dump["state"] == "done"
    assert len(lake.state(T)) == 6
    assert find_leaks(tmp_path, SECRET) == []


def test_imported_rows_are_masked_as_the_log(backend: PostgresBackend, tmp_path: Path) -> None:
    """The files hold the clear values; neither they nor a part of them lands."""
    lake, source = CaptureLake(tmp_path / "lake"), masked(backend)
    lake.capture(source)
    taken = export(backend, T, tmp_path / "rows")
    backend.run("INSERT INTO people VALUES (7, 'SECRET 1')")
    lake.capture(source)
    queue = ImportQueue(taken.source_type, lake.paths.landing, lake.store)
    (schema,) = [schema for schema in source.tables() if schema.table == T]
    queue.add(taken.files, schema, is_masked=True, replaces=False)
    lake.capture(source, chunk_size=4)
    assert [dump["state"] for dump in lake.dumps()] == ["done"]
    state = lake.state(T)
    assert (len(state), state["1",]["email"]) == (7, state["7",]["email"])
    assert find_leaks(tmp_path / "lake", SECRET) == []
