"""Landing decoded again: what it puts right, what it refuses, and what is left when it dies on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import dblake.reconcile.reconciler
import dblake.redecode.run
import dblake.state.restate
from dblake.core.errors import LandingGap, SupersededByRedecode, UsageError
from dblake.core.position import Position
from dblake.core.schema import Column, TableSchema
from dblake.events.schema import EVENTS
from dblake.lake.frontier import Frontier, read_frontier
from dblake.lake.layout import Paths
from dblake.lake.log import commit_files
from dblake.landing.control import ChunkEnd
from dblake.reconcile.reconciler import Reconciler
from dblake.reconcile.stream import reconcile_once
from dblake.redecode.preconditions import require_landing
from dblake.redecode.run import decode_again
from dblake.sql.query import query
from dblake.state.run import run_state
from jobs.reconcile import reconcile as job
from tests.model.dblog import ChunkRow, High, Low
from tests.support.histories import interleave_landings, play, random_steps
from tests.support.landed import Change, LandedRecord, land

_REST = (Column("v", "text"),)
T, U = (TableSchema(f"public.{name}", (Column("id", "integer", False, 1), *_REST)) for name in "tu")
TABLES = {T.table: T, U.table: U}


def put(batch: int, lsn: int, key: str, value: str, op: str = "c", table: str = T.table) -> Change:
    """A row created or updated in a transaction of its own."""
    return Change(batch, 1, Position(1, lsn), lsn, table, op, (key,), {"id": key, "v": value}, last=True)


def chunk(low: tuple[int, int], rows: int, high: tuple[int, int], read: dict[str, str]) -> list[LandedRecord]:
    """A chunk of ``t``: batch and lsn of its watermarks, the batch of its rows, and the rows."""
    end = ChunkEnd("d", 1, low[1], 0, T.schema_id, len(read), min(low[0], rows))
    return [
        Low(low[0], 1, T.table, "k", Position(1, low[1])),
        *(ChunkRow(rows, 1, T.table, "k", n, (k,), {"id": k, "v": v}) for n, (k, v) in enumerate(read.items())),
        High(high[0], 1, T.table, "k", Position(1, high[1]), high[1], end),
    ]


LANDED = sorted([
    put(1, 10, "1", "a"), put(1, 11, "7", "x", table=U.table), put(2, 20, "2", "b"),
    *chunk((2, 21), 3, (4, 40), {"1": "a", "2": "b", "3": "c"}), put(3, 30, "2", "B", "u"), put(4, 41, "4", "d"),
    put(5, 50, "1", "A", "u"),
], key=lambda thing: thing.batch)
EVENTS_THEN = [
    (10, 0, "c", "1", "a"), (11, 0, "c", "7", "x"), (20, 0, "c", "2", "b"), (30, 0, "u", "2", "B"),
    (40, 0, "r", "1", "a"), (40, 4, "r", "3", "c"), (41, 0, "c", "4", "d"), (50, 0, "u", "1", "A"),
]
STATE_THEN = {"1": "A", "2": "B", "3": "c", "4": "d"}


@pytest.fixture(scope="module")
def folded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five batches, reconciled by a decoder with a defect from batch 3 on, and folded."""
    folder = tmp_path_factory.mktemp("folded")
    paths = Paths(str(folder), "shop")
    land(paths.landing, "shop", LANDED, TABLES)
    reconcile_once(spark, paths)
    plant(spark, paths)
    run_state(spark, paths)
    return folder


@pytest.fixture
def paths(folded: Path, tmp_path: Path) -> Paths:
    """A copy of it."""
    shutil.copytree(folded, tmp_path, dirs_exist_ok=True)
    return Paths(str(tmp_path), "shop")


def plant(spark: SparkSession, paths: Paths) -> None:
    """One value wrong, one event left out, and one that never was."""
    table = f"delta.`{paths.events}`"
    spark.sql(f"UPDATE {table} SET after = map('id', '2', 'v', NULL) WHERE lsn = 30")
    spark.sql(f"DELETE FROM {table} WHERE lsn = 40 AND seq = 4")
    row = spark.read.format("delta").load(paths.events).where("lsn = 41").first()
    assert row is not None
    never = row.asDict() | {"seq": 2, "key": {"id": "9"}, "after": {"id": "9", "v": "z"}}
    made = spark.createDataFrame([tuple(never[name] for name in EVENTS.names)], EVENTS)
    made.write.format("delta").mode("append").save(paths.events)


def events(spark: SparkSession, paths: Paths) -> list[tuple[Any, ...]]:
    rows = spark.read.format("delta").load(paths.events).orderBy("incarnation", "lsn", "seq").collect()
    return [(r["lsn"], r["seq"], r["op"], dict(r["key"])["id"], dict(r["after"] or {}).get("v")) for r in rows]


def state(spark: SparkSession, paths: Paths, at: Frontier | None = None) -> dict[str, str | None]:
    return {str(row["id"]): row["v"] for row in query(spark, paths, "SELECT id, v FROM public.t", at).collect()}


def test_a_defect_is_mended_in_events_ledger_and_state(spark: SparkSession, paths: Paths) -> None:
    assert state(spark, paths) == {"1": "A", "2": None, "4": "d", "9": "z"}
    untouched = DeltaTable(paths.state("public", "u")).version()
    (run,) = decode_again(spark, paths, 3)
    assert (run.first, run.last, run.tables) == (3, 5, ["public.t"])
    assert [(line.of, line.batch, line.op, line.same, line.different, line.only_old, line.only_new)
            for line in run.lines] == [
        ("events", 3, "u", 0, 1, 0, 0), ("events", 4, "c", 1, 0, 1, 0), ("events", 4, "r", 1, 0, 0, 1),
        ("events", None, "u", 1, 0, 0, 0), ("windows", None, "closed", 1, 0, 0, 0),
    ]
    assert events(spark, paths) == EVENTS_THEN
    run_state(spark, paths)
    assert state(spark, paths) == STATE_THEN
    assert DeltaTable(paths.state("public", "u")).version() == untouched
    # What was read as of the frontier follows, too, and nothing is built a second time.
    assert state(spark, paths, read_frontier(paths)) == STATE_THEN
    built = DeltaTable(paths.state("public", "t")).version()
    run_state(spark, paths)
    assert DeltaTable(paths.state("public", "t")).version() == built
    assert not Path(paths.again).exists()
    (again,) = decode_again(spark, paths, 1)
    assert again.tables == [] and {line.of for line in again.lines} == {"events", "schemas", "windows"}
    # The stream goes on as if nothing had been.
    land(paths.landing, "shop", [put(6, 60, "5", "e")], TABLES)
    assert reconcile_once(spark, paths) == 6
    run_state(spark, paths)
    assert state(spark, paths) == STATE_THEN | {"5": "e"}


class Died(BaseException):
    """What a test ends a run with in place of SIGKILL: nothing of ours catches it."""


def dying_at(name: str) -> Callable[[str], None]:
    def failpoint(here: str) -> None:
        if here == name:
            raise Died

    return failpoint


@pytest.mark.parametrize("place", [
    "reconcile.events_written", "reconcile.events_appended",
    "again.decoded", "again.compared", "again.schemas_swapped", "again.windows_swapped",
    "again.events_swapped", "again.others_stopped", "again.removed",
])
def test_dying_anywhere_is_made_good_by_the_next_run(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    before = events(spark, paths)
    with monkeypatch.context() as patched:
        for module in (dblake.redecode.run, dblake.reconcile.reconciler):
            patched.setattr(module, "failpoint", dying_at(place))
        with pytest.raises(Died):
            decode_again(spark, paths, 3)
    swapped = place in ("again.events_swapped", "again.others_stopped", "again.removed")
    assert events(spark, paths) == (EVENTS_THEN if swapped else before)
    (run,) = decode_again(spark, paths, 3)
    assert (run.tables, events(spark, paths)) == (["public.t"], EVENTS_THEN)
    assert not Path(paths.again).exists()


def test_what_was_begun_is_finished_before_another_stretch_is_decoded(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(dblake.redecode.run, "failpoint", dying_at("again.windows_swapped"))
        decode_again(spark, paths, 3)
    begun, asked = decode_again(spark, paths, 5)
    assert (begun.first, begun.tables, asked.first, asked.tables) == (3, ["public.t"], 5, [])
    assert events(spark, paths) == EVENTS_THEN


def test_state_that_dies_before_it_has_noted_what_it_built_does_so_later(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_again(spark, paths, 3)
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(dblake.state.restate, "failpoint", dying_at("state.restated"))
        run_state(spark, paths)
    assert state(spark, paths, read_frontier(paths))["2"] is None
    run_state(spark, paths)
    assert state(spark, paths, read_frontier(paths)) == STATE_THEN


def test_reconcile_beside_redecode_stops_and_its_batches_are_decoded_again(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Reconciler(lambda: spark, paths)
    beside.catch_up()
    land(paths.landing, "shop", [put(6, 60, "5", "e"), put(7, 70, "6", "f"), put(8, 80, "8", "h")], TABLES)

    def append(here: str) -> None:
        if here == "again.compared":
            beside.reconcile(6)

    with monkeypatch.context() as patched:
        patched.setattr(dblake.redecode.run, "failpoint", append)
        rounds = decode_again(spark, paths, 3)
    assert [(run.first, run.last) for run in rounds] == [(3, 5), (6, 6)]
    with pytest.raises(SupersededByRedecode, match="Next: start it again"):
        beside.reconcile(7)
    assert Reconciler(lambda: spark, paths).done() == 6


@pytest.mark.parametrize("place", ["reconcile.events_written", "commit"])
def test_events_written_before_a_swap_are_rejected_after_it(
    spark: SparkSession, paths: Paths, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    late = Reconciler(lambda: spark, paths)
    late.catch_up()
    land(paths.landing, "shop", [put(6, 60, "5", "e")], TABLES)

    def swap(here: str) -> None:
        if here == place:
            # Its own reconcile reaches these failpoints, too.
            with monkeypatch.context() as patched:
                patched.setattr(dblake.reconcile.reconciler, "failpoint", lambda _: None)
                patched.setattr(dblake.reconcile.reconciler, "commit_files", commit_files)
                decode_again(spark, paths, 3)

    def commit(*arguments: Any) -> None:
        swap("commit")
        commit_files(*arguments)

    # Where the store keeps writers apart, no lock does.
    monkeypatch.setattr(dblake.reconcile.reconciler, "commit_lock", nullcontext)
    monkeypatch.setattr(dblake.reconcile.reconciler, "failpoint", swap)
    monkeypatch.setattr(dblake.reconcile.reconciler, "commit_files", commit)
    with pytest.raises(SupersededByRedecode):
        late.reconcile(6)
    assert Reconciler(lambda: spark, paths).done() == 5
    assert events(spark, paths) == EVENTS_THEN


def test_events_found_where_a_table_had_none_reach_its_state(spark: SparkSession, tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), "shop")
    landed = [put(1, 10, "1", "a"), put(2, 20, "2", "b"), put(2, 21, "7", "x", table=U.table)]
    land(paths.landing, "shop", landed, TABLES)
    reconcile_once(spark, paths)
    # A decoder that lost it: of batch 2 state sees the other table alone.
    spark.sql(f"DELETE FROM delta.`{paths.events}` WHERE lsn = 20")
    run_state(spark, paths)
    assert read_frontier(paths).batch == 2
    decode_again(spark, paths, 1)
    assert {row["v"] for row in query(spark, paths, "SELECT v FROM t_live").collect()} == {"a"}
    run_state(spark, paths)
    for view in ("t", "t_live"):
        assert {row["v"] for row in query(spark, paths, f"SELECT v FROM {view}").collect()} == {"a", "b"}


@pytest.mark.parametrize(
    ("removed", "first", "said"),
    [
        ("batch < 1", 1, None),
        ("batch < 2", 3, None),
        ("batch < 2", 2, "no longer holds batch 2 and the one before it: it begins with batch 2"),
        ("batch < 4", 3, "no longer holds batch 3"),
        ("batch < 4", 5, None),
        ("batch < 3", 4, "windows of public.t that close in batches 4 to 5 reach back to before batch 3"),
        ("true", 5, "no longer holds batch 5"),
    ],
)
def test_landing_that_no_longer_holds_it_is_refused(
    spark: SparkSession, paths: Paths, removed: str, first: int, said: str | None
) -> None:
    spark.sql(f"DELETE FROM delta.`{paths.landing}` WHERE {removed}")
    if said is None:
        require_landing(spark, paths, first, 5)
        return
    with pytest.raises(LandingGap, match=said) as caught:
        decode_again(spark, paths, first)
    assert caught.value.exit_code == 78


def test_what_a_chunk_could_not_see_and_orphans_must_be_in_landing_too(spark: SparkSession, tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), "shop")
    end = ChunkEnd("d", 1, 40, 0, T.schema_id, 0, 4, snapshot="15:21:15")
    unseen = replace(put(1, 15, "1", "a"), txid=15)
    land(paths.landing, "shop", [
        unseen, put(2, 20, "2", "b"), Low(2, 1, U.table, "orphan", Position(1, 21)), put(3, 30, "3", "c"),
        Low(4, 1, T.table, "k", Position(1, 40)), High(4, 1, T.table, "k", Position(1, 41), 41, end),
        replace(put(5, 50, "4", "d"), lease_epoch=2),
    ], TABLES)
    reconcile_once(spark, paths)
    for removed, first, said in (("1", 3, "public.t"), ("1", 5, None), ("2", 5, "public.u")):
        spark.sql(f"DELETE FROM delta.`{paths.landing}` WHERE batch = {removed}")
        if said is None:
            require_landing(spark, paths, first, 5)
        else:
            with pytest.raises(LandingGap, match=f"windows of {said} that close in batches {first} to 5"):
                require_landing(spark, paths, first, 5)


def test_histories_decoded_again_from_their_middle_come_out_the_same(spark: SparkSession, tmp_path: Path) -> None:
    worlds = [play(random_steps(seed), f"h{seed}") for seed in range(40)]
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    paths = Paths(str(tmp_path), "shop")
    land(paths.landing, "shop", interleave_landings(worlds), schemas)
    last = reconcile_once(spark, paths)
    (run,) = decode_again(spark, paths, last // 2, max_bytes_per_trigger="100k")
    assert [line for line in run.lines if line.differs] == []
    assert {(line.of, line.op) for line in run.lines} >= {
        *(("events", op) for op in "cudrf"), ("windows", "closed"), ("windows", "discarded"),
    }


def test_the_job_shows_what_differs(paths: Paths, tmp_path: Path) -> None:
    conf = tmp_path / "shop.yaml"
    conf.write_text(
        f"warehouse: {tmp_path}\nprogress: file:{tmp_path}/progress\nsource:\n  name: shop\n  type: postgres\n"
        "  host: 127.0.0.1\n  database: shop\n  user: dblake\n  password: ${env:NONE}\n  tables: [public.*]\n"
    )
    done = CliRunner().invoke(job, ["--conf", str(conf), "--from", "4", "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    assert (found["from"], found["to"], found["tables"]) == (4, 5, ["public.t"])
    assert found["events"] == {"same": 3, "different": 0, "only_old": 1, "only_new": 1}
    assert [(line["batch"], line["op"]) for line in found["differing"]] == [(4, "c"), (4, "r")]
    shown = CliRunner().invoke(job, ["--conf", str(conf), "--from", "3"])
    assert "batches 3 to 5, decoded again" in shown.stdout and "rebuilds: public.t" in shown.stdout
    for options, said in ((["--from", "9"], "events reach batch 5"), (["--from", "1", "--continuous"], "--from cannot"),
                          (["--json"], "--from")):
        refused = CliRunner().invoke(job, ["--conf", str(conf), *options])
        assert isinstance(refused.exception, UsageError) and said in refused.exception.what
