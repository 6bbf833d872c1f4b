"""The captured tables for ``status``: each one's life, newest dump, rows and newest change.

Place: part of ``report``. Rows and times come from the state tables' Delta logs, some milliseconds a table on a local
disk: only those of some tables are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from dblake.base.core.names import split_qualified
from dblake.base.lake.figures import count_rows
from dblake.base.lake.layout import Paths
from dblake.ingest.capture.table_life import TableLife

_THREADS = 16


def describe_tables(
    paths: Paths, lives: Mapping[str, TableLife], dumps: Iterable[Mapping[str, Any]], measured: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return each table's life with ``dumped_at``, and of the ``measured`` ones with ``rows`` and ``changed_at``.

    ``rows`` include deleted keys that have not expired. What is unknown, or not measured, is None.
    """
    dumped = {dump["table"]: dump["finished_at"] for dump in dumps if dump["state"] == "done" and dump["whole"]}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="status") as pool:
        names = sorted(set(measured) & lives.keys())
        figures = dict(zip(names, pool.map(lambda name: _measure(paths, name), names), strict=True))
    return {
        name: asdict(life) | {"dumped_at": dumped.get(name)}
        | dict(zip(("rows", "changed_at"), figures.get(name, (None, None)), strict=True))
        for name, life in sorted(lives.items())
    }


def _measure(paths: Paths, name: str) -> tuple[int | None, str | None]:
    rows, changed_at = count_rows(paths.state(*split_qualified(name)))
    return rows, None if changed_at is None else changed_at.isoformat(timespec="seconds")
