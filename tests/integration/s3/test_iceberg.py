"""State tables on S3 as Iceberg tables in Glue's catalog, both of moto."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog import load_catalog

from dblake.base.core.position import Position
from dblake.base.lake.frontier import Frontier, append_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import Location
from dblake.base.lake.tables import open_table
from dblake.serve.iceberg.publisher import Publisher
from tests.model.state import Event
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Server, storage
from tests.unit.transform.state.test_merge_property import Target, to_arrow


def test_glue_tables_have_rows_of_state(s3: S3Server, tmp_path: Path) -> None:
    """Publish rows, changes and deletes; then expire, and let Delta remove its old files."""
    bucket = s3.new_bucket()
    paths = Paths(Location(f"s3://{bucket}/lake", storage(s3.port)), "shop")
    keys = {"glue.access-key-id": ACCESS_KEY, "glue.secret-access-key": SECRET_KEY, "glue.region": "us-east-1"}
    properties = {"type": "glue", "glue.endpoint": s3.endpoint, "warehouse": f"s3://{bucket}/iceberg", **keys}
    publisher, target = Publisher(paths, properties, "shop"), Target(tmp_path)
    target.path = paths.state("public", "t")
    catalog = load_catalog("default", **properties, **storage(s3.port).iceberg_properties())
    steps = [("c", range(50), "x"), ("u", range(10), "y"), ("d", range(20, 30), "")]
    for batch, (op, numbers, value) in enumerate(steps, 1):
        image = {} if op == "d" else {"a": value, "b": None, "c": None}
        target.merge(to_arrow([Event((1, batch, n), op, f"k{n}", image, batch) for n in numbers]), batch)
        append_frontier(paths, Frontier(batch, Position(1, batch, 0), {"public.t": open_table(target.path).version()}))
        assert publisher.publish_changed() == ["public.t"] and publisher.publish_changed() == []
        rows = catalog.load_table("shop.public_t").scan().to_arrow().to_pylist()
        expected = {row["id"]: row["a"] for row in target.rows() if not row["_deleted"]}
        assert {row["id"]: row["a"] for row in rows} == expected and len(rows) == len(expected)
    publisher.prepare_vacuum("public.t", 0)
    open_table(target.path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    table = catalog.load_table("shop.public_t")
    assert len(table.snapshots()) == 1 and table.scan().to_arrow().num_rows == 40
