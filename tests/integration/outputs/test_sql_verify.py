"""``verify --output``: planted damage at a SQL target is found, named, and delivered again, while the output moves."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dblake.base.core.errors import ConfigError, CopyDiffers, StateNotReady, Unsupported, UsageError
from dblake.config import load_config
from dblake.operate.verification import outputs as module
from dblake.operate.verification.ledger import newest_by_table
from dblake.operate.verification.outputs import OutputVerification
from dblake.serve.outputs.sql.comparison import SqlCopy
from jobs.verify import verify
from pipelines.subscribe import run_subscribe
from pipelines.verify import output_verification
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema
from tests.support.sql_delivery import SCHEMA
from tests.support.sql_places import Place
from tests.support.sql_rows import sql_rows

T = table_schema(
    "public.t", "id integer key", "at timestamp without time zone", "price numeric(10,2)", "doc json", "note text"
)
PAIRS = table_schema("public.pairs", "a text key", "b text key", "v double precision")
_ROWS = 40


@pytest.fixture(params=["on_postgres", "on_mariadb", pytest.param("on_mysql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Place:
    """Every kind of target."""
    chosen: Place = request.getfixturevalue(request.param)
    return chosen


def _row(number: int, **values: str | None) -> dict[str, str | None]:
    return {"id": str(number), "at": "2026-11-22 12:00:00", "price": "12.50", "doc": '{"a": 1}',
            "note": "Käse" if number % 2 else None} | values


class _Copy:
    """A lake with two tables, and its output ``copy`` into a target."""

    def __init__(self, folder: Path, place: Place, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setenv("COPY_PASSWORD", place.password)
        self.lake, self.conf, self.batch = PlainLake(folder / "warehouse"), folder / "shop.yaml", 1
        self.place = place
        for schema in (T, PAIRS):
            self.lake.schema(schema)
        self.lake.land(1, {
            T: [(n, "c", str(n), _row(n)) for n in range(1, _ROWS + 1)],
            PAIRS: [(50 + n, "c", (f'"{n}', "ü,"), {"a": f'"{n}', "b": "ü,", "v": "0.1"}) for n in range(3)],
        })
        self.lake.fold(1)
        output = {"type": "sql", "url": place.url, "password": "${env:COPY_PASSWORD}", "schema": SCHEMA,
                  "tls": "disable", **settings}
        self.conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress", "outputs": {"copy": output, "lines": {
                "type": "jsonl", "path": "./lines.jsonl"}},
            "source": {"name": "shop", "type": "postgres", "host": "127.0.0.1", "port": 1, "database": "d", "user": "u",
                       "password": "${env:NONE}", "tables": ["public.*"]},
        }))

    def change(self, number: int, **values: str | None) -> None:
        """Append an update in a batch of its own."""
        self.batch += 1
        image = {"id": str(number), **values}
        self.lake.land(self.batch, {T: [(100 * self.batch, "u", str(number), image)]})

    def deliver(self) -> None:
        """Deliver all events."""
        run_subscribe(load_config(self.conf), "copy", threading.Event(), until_caught_up=True)

    def verification(self, *tables: str) -> OutputVerification:
        """Return a verification of the output."""
        return output_verification(load_config(self.conf), "copy", tables)

    def verify(self, *tables: str, repair: bool = False) -> dict[str, dict[str, Any]]:
        """Verify the output; return the results by table."""
        return {one["table"]: one for one in self.verification(*tables).run(repair=repair)}

    def damage(self) -> None:
        """Change the target by hand: two values, two rows less, a row more in each table."""
        for statement in (
            f"UPDATE {SCHEMA}.t SET note = 'käse' WHERE id = 1", f"UPDATE {SCHEMA}.t SET price = 12.51 WHERE id = 2",
            f"DELETE FROM {SCHEMA}.t WHERE id IN (3, 4)", f"INSERT INTO {SCHEMA}.t (id, note) VALUES (999, 'planted')",
            f"INSERT INTO {SCHEMA}.pairs (a, b, v) VALUES ('x', 'y', 1)",
        ):
            self.place.run(statement)


def _counts(result: dict[str, Any]) -> tuple[int, ...]:
    return tuple(result[name] for name in ("missing", "extra", "different", "repaired", "remaining"))


def test_planted_damage_is_found_and_repaired(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = _Copy(tmp_path, place, monkeypatch)
    copy.deliver()
    # State is behind the output, whose position counts, and in front of nothing.
    copy.change(5, note="changed")
    copy.change(6, price=None)
    copy.deliver()
    copy.change(7, note="not delivered")
    clean = copy.verify()
    assert {table: _counts(one) for table, one in clean.items()} == {T.table: (0,) * 5, PAIRS.table: (0,) * 5}
    assert clean[T.table]["rows_compared"] == _ROWS
    copy.damage()
    verification = copy.verification()
    found = verification.run(repair=False)
    assert [_counts(one) for one in found] == [(0, 1, 0, 0, 1), (2, 1, 2, 0, 5)]
    with pytest.raises(CopyDiffers, match=r"rows of its target differ from state: public\.pairs, public\.t"):
        verification.require_equal(found)
    (row,) = sql_rows(copy.lake.paths, f"SELECT * FROM dblake.verifications WHERE \"table\" = '{T.table}' "
                                       f"AND verification_id = '{verification.id}'")
    assert (row["output"], row["missing_keys"], row["extra_keys"]) == ("copy", ["3", "4"], ["999"])
    assert (sorted(row["different_keys"]), dict(row["columns"])) == (["1", "2"], {"note": 1, "price": 1})
    done = CliRunner().invoke(verify, ["--conf", str(copy.conf), "--output", "copy", "--table", "public.t", "--json"])
    assert isinstance(done.exception, CopyDiffers) and _counts(json.loads(done.stdout)[0]) == (2, 1, 2, 0, 5)
    repaired = copy.verify(repair=True)
    assert {table: _counts(one) for table, one in repaired.items()} == {
        T.table: (2, 1, 2, 5, 0), PAIRS.table: (0, 1, 0, 1, 0)
    }
    # The output goes on, and what it delivers again changes nothing.
    copy.deliver()
    assert all(not one["remaining"] for one in copy.verify().values())
    assert place.rows(f"SELECT note FROM {SCHEMA}.t WHERE id = 7") == [("not delivered",)]
    assert newest_by_table(copy.lake.paths) == {}, "these rows do not concern state and source"


def test_newer_rows_survive_a_repair(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between comparison and repair the output writes on: a row that it changed, and a key that is new."""
    copy = _Copy(tmp_path, place, monkeypatch)
    copy.deliver()
    copy.damage()
    original = SqlCopy.deliver_again

    def deliver_again(self: SqlCopy, *arguments: Any) -> None:
        copy.change(1, note="newer")
        copy.batch += 1
        copy.lake.land(copy.batch, {T: [(100 * copy.batch, "c", "999", _row(999, note="source's own"))]})
        copy.deliver()
        original(self, *arguments)

    monkeypatch.setattr(SqlCopy, "deliver_again", deliver_again)
    result = copy.verify(repair=True)[T.table]
    assert (result["remaining"], result["missing"]) == (0, 2)
    rows = place.rows(f"SELECT id, note FROM {SCHEMA}.t WHERE id IN (1, 3, 999) ORDER BY 1")
    assert rows == [(1, "newer"), (3, "Käse"), (999, "source's own")]


def test_targets_that_cannot_be_compared_are_named(
    on_mariadb: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = _Copy(tmp_path, on_mariadb, monkeypatch, columns={"public.t": ["note"]})
    config = load_config(copy.conf)
    with pytest.raises(ConfigError, match="the target has no table _dblake_checkpoints"):
        on_mariadb.run(f"CREATE DATABASE {SCHEMA}")
        copy.verify()
    copy.deliver()
    assert _counts(copy.verify("public.t")["public.t"]) == (0,) * 5
    with pytest.raises(Unsupported, match=r"output copy: it has written no table public\.none"):
        copy.verify("public.none")
    on_mariadb.run(f"ALTER TABLE {SCHEMA}.t ENGINE = MyISAM")
    with pytest.raises(ConfigError, match="the target's table t has a storage engine without snapshots"):
        copy.verify()
    with pytest.raises(Unsupported, match="only outputs of type sql"):
        output_verification(config, "lines", ()).run(repair=False)
    with pytest.raises(UsageError, match="there is no output other"):
        output_verification(config, "other", ())
    on_mariadb.run(f"ALTER TABLE {SCHEMA}.t ENGINE = InnoDB")
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.3)
    (text,) = on_mariadb.rows(f"SELECT checkpoint FROM {SCHEMA}._dblake_checkpoints")[0]
    ahead = json.loads(text)
    ahead["sources"]["shop"] |= {"position": "1/9000/0", "reached": 99}
    escaped = json.dumps(ahead).replace("\\", "\\\\")
    on_mariadb.run(f"UPDATE {SCHEMA}._dblake_checkpoints SET checkpoint = '{escaped}'")
    with pytest.raises(StateNotReady, match="cannot be compared: it is ahead of events"):
        copy.verify()
    on_mariadb.run(f"UPDATE {SCHEMA}._dblake_checkpoints SET checkpoint = NULL")
    with pytest.raises(StateNotReady, match="cannot be compared: it has delivered nothing yet"):
        copy.verify()
