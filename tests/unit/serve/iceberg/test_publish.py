"""State tables as Iceberg tables in an SQL catalog: the rows equal those of the Delta table, whatever is published."""

from __future__ import annotations

import itertools
import random
import threading
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table import Table

import dblake.serve.iceberg.table
import dblake.transform.state.upsert
from dblake.base.core.errors import CatalogRejected, CatalogUnavailable, ConfigError, TableUnavailable
from dblake.base.core.position import Position
from dblake.base.lake.frontier import Frontier, append_frontier
from dblake.base.lake.layout import Paths
from dblake.serve.iceberg.publisher import Publisher, published_name
from dblake.serve.iceberg.table import VERSION, PublishedTable, data_files, expire, publish
from dblake.transform.state import table as state_table
from dblake.transform.state.fold import fold
from dblake.transform.state.merge import write_first
from dblake.transform.state.shape import shape_of
from tests.model.state import Event
from tests.model.state_histories import altered_table, in_batches
from tests.support.effort import seeds
from tests.support.schemas import table_schema
from tests.unit.transform.state.test_merge_property import APP, BATCHES, Target, to_arrow

SOURCE = "shop"
Rows = list[dict[str, Any]]


class Published(Target):
    """A state table, and the Iceberg table that is to equal it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.catalog = catalog_in(folder)
        self.catalog.create_namespace("shop")
        self.target = PublishedTable(self.path, "shop", "t", APP)

    def publish(self) -> bool:
        return publish(self.catalog, self.target)

    @property
    def iceberg(self) -> Table:
        return self.catalog.load_table(self.target.identifier)

    def expected(self) -> Rows:
        """Return the table's rows that are not deleted."""
        there = [row for row in self.rows() if not row["_deleted"]]
        return in_order([{name: value for name, value in row.items() if name != "_deleted"} for row in there])

    def published(self, snapshot: int | None = None) -> Rows:
        return in_order(self.iceberg.scan(snapshot_id=snapshot).to_arrow().to_pylist())


def catalog_in(folder: Path) -> Catalog:
    return load_catalog("default", **properties(folder))


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/iceberg.db", "warehouse": f"file://{folder}/iceberg"}


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: str(row["_key"]))


def creates(batch: int, numbers: range) -> list[Event]:
    return [Event((1, batch, n), "c", f"k{n}", {"a": f"{batch} {n}", "b": None, "c": "c"}, batch) for n in numbers]


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_snapshots_equal_versions_through_schema_changes(tmp_path: Path, seed: int) -> None:
    """Every snapshot equals its Delta version, when it is the newest one and later."""
    draw = random.Random(seed)
    schemas, since, events = altered_table(draw, 40)
    events = in_batches(events, BATCHES)
    lake, versions = Published(tmp_path), dict[int, Rows]()
    for batch in range(1, BATCHES + 1):
        step = [e for e in events if e.batch == batch]
        lake.merge(to_arrow(step), batch, schemas[: bisect_right(since, max(e.at[1] for e in step)) + 1])
        assert lake.publish() and not lake.publish()
        assert lake.published() == lake.expected(), f"seed {seed}, batch {batch}"
        snapshot = lake.iceberg.current_snapshot()
        assert snapshot and snapshot.summary and snapshot.summary["dblake.batch"] == str(batch)
        versions[snapshot.snapshot_id] = lake.expected()
    assert any(row["_deleted"] for row in lake.rows())
    for number, rows in versions.items():
        assert lake.published(number) == rows


def test_file_with_tombstones_among_rows_is_separated(tmp_path: Path) -> None:
    """OPTIMIZE of another engine merges tombstones with rows; the snapshot has the rows alone."""
    lake = Published(tmp_path)
    lake.merge(to_arrow(creates(1, range(20))), 1)
    lake.merge(to_arrow([Event((1, 2, n), "d", f"k{n}", {}, 2) for n in range(5)]), 2)
    lake.publish()
    DeltaTable(lake.path).optimize.compact()
    assert len(DeltaTable(lake.path).file_uris()) == 1
    assert lake.publish()
    assert len(lake.published()) == 15 and lake.published() == lake.expected()
    assert sum(row["_deleted"] for row in lake.rows()) == 5
    # Maintenance by Spark gives files of tombstones other names.
    DeltaTable(lake.path).delete("id = 'k0'")
    files = [uri.rpartition("/")[2] for uri in DeltaTable(lake.path).file_uris()]
    assert len(files) == 2 and not any(name.startswith("tombstones") for name in files)
    lake.publish()
    assert len(lake.published()) == 15 and len(data_files(lake.iceberg)) == 1


def test_rebuilt_table_has_its_new_types_and_rows_only(tmp_path: Path) -> None:
    """A column of another type is another field, and snapshots with the old one end."""
    lake = Published(tmp_path)
    lake.merge(to_arrow(creates(1, range(9))), 1)
    lake.publish()
    shape = shape_of([table_schema("public.t", "id text key", "a integer", "_file text")])
    created = [Event((1, 2, n), "c", f"k{n}", {"a": str(n), "_file": "f"}, 2) for n in range(3)]
    events = to_arrow(created, ["a", "_file"])
    state_table.replace(
        lake.path, lambda columns: write_first(lake.path, columns, shape, [fold(events, shape, None)]), shape,
        app=APP, batch=2,
    )
    assert lake.publish()
    # Iceberg reserves the name _file.
    assert [(row["id"], row["a"], row["_file_"]) for row in lake.published()] == [(f"k{n}", n, "f") for n in range(3)]
    assert len(lake.iceberg.snapshots()) == 1
    assert len(lake.iceberg.scan(row_filter="a = 2").to_arrow()) == 1


def test_vacuum_leaves_no_snapshot_without_files(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    for batch in range(1, 5):
        lake.merge(to_arrow(creates(batch, range(10))), batch)
        lake.publish()
    now = int(datetime.now(UTC).timestamp() * 1000) + 1
    assert expire(lake.catalog, lake.target, now) == 3 and expire(lake.catalog, lake.target, now) == 0
    DeltaTable(lake.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    for snapshot in lake.iceberg.snapshots():
        assert lake.published(snapshot.snapshot_id) == lake.expected()
    named = {snapshot.manifest_list for snapshot in lake.iceberg.snapshots()}
    assert {f"file://{path}" for path in (tmp_path / "iceberg").rglob("snap-*.avro")} == named


@pytest.mark.parametrize("interfered", [range(1, 2), range(99)], ids=["once", "always"])
def test_expiry_that_loses_to_a_commit_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interfered: range
) -> None:
    """Another job publishes after a commit has loaded the table: its own snapshot stays."""
    lake, other = Published(tmp_path), catalog_in(tmp_path)
    for batch in (1, 2):
        lake.merge(to_arrow(creates(batch, range(3))), batch)
        lake.publish()
    load, loads = lake.catalog.load_table, itertools.count()

    def load_and_fall_behind(name: tuple[str, str]) -> Table:
        table = load(name)
        # A commit loads the table again.
        if (number := next(loads)) in interfered:
            lake.merge(to_arrow(creates(3 + number, range(3))), 3 + number)
            publish(other, lake.target)
        return table

    monkeypatch.setattr(lake.catalog, "load_table", load_and_fall_behind)
    monkeypatch.setattr(dblake.serve.iceberg.table, "_ATTEMPTS", 2)
    now = int(datetime.now(UTC).timestamp() * 1000) + 600_000
    if len(interfered) == 1:
        assert expire(lake.catalog, lake.target, now) == 2
        assert len(lake.iceberg.snapshots()) == 1 and lake.published() == lake.expected()
    else:
        with pytest.raises(TableUnavailable, match="was changed by other jobs each time"):
            expire(lake.catalog, lake.target, now)


def test_only_newest_snapshots_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dblake.serve.iceberg.table, "_KEPT_SNAPSHOTS", 1)
    lake = Published(tmp_path)
    for batch in range(1, 4):
        lake.merge(to_arrow(creates(batch, range(3 * batch))), batch)
        lake.publish()
    assert len(lake.iceberg.snapshots()) == 1 and lake.published() == lake.expected()


@pytest.mark.parametrize("error", [CommitFailedException, CommitStateUnknownException, ConnectionError])
def test_commit_with_lost_answer_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The catalog commits, and its answer is lost: as a conflict that a repeated request meets, or as an error."""
    lake = Published(tmp_path)
    lake.merge(to_arrow(creates(1, range(5))), 1)
    lake.publish()
    lake.merge(to_arrow(creates(2, range(5, 9))), 2)
    commit, lost = lake.catalog.commit_table, [True]

    def lose_answer(*arguments: Any) -> Any:
        done = commit(*arguments)
        if lost and lost.pop():
            raise error("lost")
        return done

    monkeypatch.setattr(lake.catalog, "commit_table", lose_answer)
    if error is ConnectionError:
        with pytest.raises(ConnectionError):
            lake.publish()
    lake.publish()
    assert lake.published() == lake.expected() and len(lake.iceberg.snapshots()) == 2


def test_older_version_never_follows_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between comparing and committing, another job publishes a newer version that has the same files and more."""
    monkeypatch.setattr(dblake.transform.state.upsert, "_ABSORBED_BYTES", 0)
    lake, other = Published(tmp_path), catalog_in(tmp_path)
    lake.merge(to_arrow(creates(1, range(3000))), 1)
    lake.publish()
    lake.merge(to_arrow(creates(2, range(3000, 3500))), 2)
    steps: list[Callable[[], object]] = [
        lambda: lake.merge(to_arrow(creates(3, range(3500, 3510))), 3), lambda: publish(other, lake.target),
    ]

    def overtake(name: str) -> None:
        while name == "iceberg.compared" and steps:
            steps.pop(0)()

    monkeypatch.setattr(dblake.serve.iceberg.table, "failpoint", overtake)
    lake.publish()
    assert len(DeltaTable(lake.path).file_uris()) == 3
    assert len(lake.published()) == 3510 and lake.published() == lake.expected()
    versions = [snapshot.summary[VERSION] for snapshot in lake.iceberg.snapshots() if snapshot.summary]
    assert len(versions) == 2 and versions[-1] == str(DeltaTable(lake.path).version())


def test_table_that_others_change_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, other = Published(tmp_path), catalog_in(tmp_path)
    lake.merge(to_arrow(creates(1, range(2))), 1)
    lake.publish()
    lake.merge(to_arrow(creates(2, range(4))), 2)

    def interfere(name: str) -> None:
        if name == "iceberg.compared":
            other.load_table(lake.target.identifier).append(lake.iceberg.scan().to_arrow().slice(0, 0))

    monkeypatch.setattr(dblake.serve.iceberg.table, "failpoint", interfere)
    monkeypatch.setattr(dblake.serve.iceberg.table, "_ATTEMPTS", 2)
    with pytest.raises(TableUnavailable, match="was changed by other jobs each time"):
        lake.publish()


def test_table_of_another_owner_is_rejected(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    lake.merge(to_arrow(creates(1, range(2))), 1)
    lake.catalog.create_table(lake.target.identifier, Schema())
    with pytest.raises(ConfigError, match="publishes something else"):
        lake.publish()


def lake_with(folder: Path, tables: list[str]) -> tuple[Paths, dict[str, Target]]:
    """Return a lake with state tables of one row."""
    paths, found = Paths(str(folder / "lake"), SOURCE), {}
    for table in tables:
        found[table] = Target(folder)
        found[table].path = paths.state("public", table)
        found[table].merge(to_arrow(creates(1, range(1))), 1)
    note(paths, found, 1)
    return paths, found


def note(paths: Paths, tables: dict[str, Target], batch: int) -> None:
    versions = {f"public.{table}": DeltaTable(at.path).version() for table, at in tables.items()}
    append_frontier(paths, Frontier(batch, Position(1, batch, 0), versions))


def test_publisher_publishes_changed_tables_only(tmp_path: Path) -> None:
    """Also in a process that has just started, and after one that died before it noted what it had published."""
    paths, tables = lake_with(tmp_path, ["a", "b"])

    def publisher() -> Publisher:
        return Publisher(paths, properties(tmp_path), "shop")

    first = publisher()
    assert sorted(first.publish_changed()) == ["public.a", "public.b"]
    tables["a"].merge(to_arrow(creates(2, range(1, 4))), 2)
    note(paths, tables, 2)
    assert first.publish(["public.a"]) == ["public.a"]
    assert publisher().publish_changed() == [], "done, if not noted"
    tables["b"].merge(to_arrow(creates(3, range(1, 3))), 3)
    note(paths, tables, 3)
    assert publisher().publish_changed() == ["public.b"]
    assert first.publish_changed() == [] and publisher().publish_changed() == []
    assert catalog_in(tmp_path).load_table("shop.public_a").scan().to_arrow().num_rows == 4


def test_table_that_fails_delays_no_other(tmp_path: Path) -> None:
    paths, _ = lake_with(tmp_path, ["a", "b", "c"])
    catalog = catalog_in(tmp_path)
    catalog.create_namespace("shop")
    catalog.create_table("shop.public_a", Schema())
    publisher = Publisher(paths, properties(tmp_path), "shop")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"the table shop\.public_a publishes something else"):
            publisher.publish_changed()
    assert [catalog.load_table(f"shop.public_{one}").scan().to_arrow().num_rows for one in "bc"] == [1, 1]
    catalog.drop_table("shop.public_a")
    assert publisher.publish_changed() == ["public.a"]


def test_publisher_publishes_events_that_changed_alone(tmp_path: Path) -> None:
    """State tables that are behind delay no events; what is published is known in a process that has just started."""
    paths, _ = lake_with(tmp_path, ["a"])

    def publish_changed() -> list[str]:
        return Publisher(paths, properties(tmp_path), "shop", has_events=True).publish_changed()

    assert publish_changed() == ["public.a"]
    for number in (1, 2):
        write_deltalake(paths.events, pa.table({"_batch": [number]}), mode="append")
        assert publish_changed() == ["events"]
        version = DeltaTable(paths.frontier).version()
        assert publish_changed() == [] and DeltaTable(paths.frontier).version() == version
    assert catalog_in(tmp_path).load_table("shop.events").scan().to_arrow().num_rows == 2


def test_publisher_prepares_vacuum_of_compacted_table(tmp_path: Path) -> None:
    """No state step follows a compaction, and the files that it replaced go."""
    paths, tables = lake_with(tmp_path, ["a"])
    publisher = Publisher(paths, properties(tmp_path), "shop")
    publisher.publish_changed()
    DeltaTable(tables["a"].path).optimize.z_order(["id"])
    publisher.prepare_vacuum("public.a", 0)
    DeltaTable(tables["a"].path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    table = catalog_in(tmp_path).load_table("shop.public_a")
    assert len(table.snapshots()) == len(data_files(table)) == 1 == table.scan().to_arrow().num_rows


def test_publisher_names_unreachable_catalog(tmp_path: Path) -> None:
    paths, _ = lake_with(tmp_path, ["a"])
    with pytest.raises(CatalogUnavailable, match="the Iceberg catalog failed"):
        Publisher(paths, {"type": "sql", "uri": f"sqlite:///{tmp_path}/no/c.db"}, "shop").publish_changed()
    with pytest.raises(CatalogUnavailable, match="the Iceberg catalog failed"):
        Publisher(paths, {"type": "rest", "uri": "http://127.0.0.1:9"}, "shop").publish_changed()


def test_publisher_names_rejected_credentials(tmp_path: Path) -> None:
    class Rejecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    paths, _ = lake_with(tmp_path, ["a"])
    with HTTPServer(("127.0.0.1", 0), Rejecting) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(CatalogRejected, match="the Iceberg catalog rejected the request"):
            url = f"http://127.0.0.1:{server.server_port}"
            Publisher(paths, {"type": "rest", "uri": url}, "shop").publish_changed()


def test_published_names_are_one_to_one() -> None:
    names = ["public.orders", 'public."Orders"', 'public."or.ders"', 'public."or-ders"']
    assert [published_name(name)[:13] for name in names] == ["public_orders"] * 2 + ["public_or_der"] * 2
    assert len({published_name(name) for name in names}) == 4


def test_publisher_rejects_two_tables_of_one_name(tmp_path: Path) -> None:
    paths, tables = lake_with(tmp_path, ["a"])
    append_frontier(paths, Frontier(2, Position(1, 2, 0), {"a.b_c": 1, "a_b.c": 1}))
    assert tables
    with pytest.raises(ConfigError, match=r"a\.b_c and a_b\.c would have the same name"):
        Publisher(paths, properties(tmp_path), "shop").publish_changed()
