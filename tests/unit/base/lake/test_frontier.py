"""The frontier table before its first row."""

from __future__ import annotations

from pathlib import Path

from dblake.base.lake.frontier import FRONTIER, Frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import create_table


def test_frontier_without_a_row_has_no_position(tmp_path: Path) -> None:
    """State creates the table and appends the first row in two commits."""
    paths = Paths(str(tmp_path), "shop")
    assert read_frontier(paths) == Frontier()
    create_table(paths.frontier, FRONTIER)
    assert read_frontier(paths) == Frontier()
