"""Events of tables whose schema was never recorded: a table that came and went without a row changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.base.core.position import Position
from dblake.base.lake.frontier import Frontier, append_frontier, read_frontier
from dblake.transform.spark.session import session_of
from dblake.transform.state.pending import folded_batch
from dblake.transform.state.run import TableResult, run_state
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

QUIET, GONE = table_schema("public.quiet", "id integer key"), table_schema("public.gone", "id integer key")


@pytest.fixture
def lake(tmp_path: Path) -> PlainLake:
    lake = PlainLake(tmp_path)
    lake.schema(QUIET)
    lake.land(1, {QUIET: [(10, "c", "1", {"id": "1"})]})
    return lake


def fold(lake: PlainLake, until: int | None = None) -> list[TableResult]:
    return run_state(session_of("test"), lake.paths, until_batch=until)


def test_truncate_of_unrecorded_table_is_passed_over(lake: PlainLake) -> None:
    """MariaDB, MySQL: the table was created and dropped before capture recorded its schema; later it exists again."""
    lake.land(2, {GONE: [(20, "t", None, None)]})
    assert [(result.table, result.error) for result in fold(lake)] == [("public.quiet", None)]
    assert (read_frontier(lake.paths).batch, folded_batch(lake.paths)) == (2, 2)
    lake.land(3, {GONE: [(30, "t", None, None)]})
    assert (fold(lake), folded_batch(lake.paths)) == ([], 3)
    lake.schema(GONE, lsn=35, batch=4)
    lake.land(4, {GONE: [(40, "c", "5", {"id": "5"})]})
    assert [(result.table, result.events, result.error) for result in fold(lake)] == [("public.gone", 1, None)]


def test_lake_that_waits_for_unrecorded_table_goes_on(lake: PlainLake) -> None:
    """Earlier versions left the table behind, and named it in every frontier row."""
    lake.land(2, {GONE: [(20, "t", None, None)]})
    fold(lake, until=1)
    before = read_frontier(lake.paths)
    append_frontier(lake.paths, Frontier(2, Position(1, 20, 0), before.versions, {"public.gone": 0}))
    assert (fold(lake), read_frontier(lake.paths).behind, folded_batch(lake.paths)) == ([], {}, 2)


def test_row_of_unrecorded_table_is_an_error(lake: PlainLake) -> None:
    """Its schema is lost, and its rows with it: that is named, a truncate beside it or not."""
    lake.land(2, {GONE: [(20, "t", None, None), (21, "c", "1", {"id": "1"})]})
    (error,) = [result.error for result in fold(lake) if result.error]
    assert "public.gone" in error.what and read_frontier(lake.paths).behind == {"public.gone": 0}
