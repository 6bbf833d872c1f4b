"""The servers of these tests. Tests run on MariaDB and MySQL; on MySQL only those marked ``parity`` are short."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what repeats a case of MariaDB on MySQL as slow, unless it is marked ``parity``."""
    here = Path(__file__).parent
    functions = [item for item in items if isinstance(item, pytest.Function) and item.path.parent == here]
    on_mariadb = {(item.path, item.originalname) for item in functions if _server_of(item) == "mariadb"}
    for item in functions:
        is_repeated = _server_of(item) == "mysql" and (item.path, item.originalname) in on_mariadb
        if is_repeated and not item.get_closest_marker("parity"):
            item.add_marker(pytest.mark.slow)


def _server_of(item: pytest.Function) -> object:
    return item.callspec.params.get("mysql_server") if hasattr(item, "callspec") else None
