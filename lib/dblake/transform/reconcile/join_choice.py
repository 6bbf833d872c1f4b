"""Choose where the keys of windows and dumps are compared: in this process, or by Spark.

Place: between ``reconciler`` and the implementations of ``key_join``. Guarantee: PySpark is imported only for what this
process does not compare.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dblake.transform.reconcile.arrow_keys import ArrowKeyJoin
from dblake.transform.reconcile.batch_summary import RowGroups
from dblake.transform.reconcile.key_join import KeyJoin
from dblake.transform.reconcile.runner import Runner

_COMPARED_ROWS = 4_000_000
"""Rows whose keys are compared in the driver: each takes about 150 bytes there. More are compared by Spark."""
_COMPARED_BYTES = 1 << 30
"""Files, uncompressed, whose keys are compared in the driver: it decodes about 200 MB a second."""


def choose_join(runner: Runner, scratch: str, parts: Iterable[RowGroups]) -> KeyJoin[Any]:
    """Return the join for the keys in these files: in this process up to a bound, unless ``runner`` takes all work.

    ``scratch`` is a folder of the lake for files that tasks write for each other.
    """
    rows = size = 0
    for part in parts:
        rows, size = rows + part.rows, size + part.size
    if rows <= _COMPARED_ROWS and size <= _COMPARED_BYTES and not runner.takes_all_work:
        return ArrowKeyJoin()
    from dblake.transform.reconcile.spark_keys import SparkKeyJoin

    return SparkKeyJoin(runner, scratch)
