"""Count the values that a state table cannot hold, and shows as NULL: ``infinity``, dates before Christ, NaN.

Place: beside the engines, for the notes of ``completeness``. It reads one column of state, ``_lossy``.
"""

from __future__ import annotations

import duckdb

from dblake.base.core.names import split_qualified
from dblake.base.lake.layout import Paths
from dblake.serve.sql.scan import ScannedFiles, state_rows


def count_lossy_rows(paths: Paths, table: str) -> dict[str, int]:
    """Return in how many rows of state each column has a value that its type cannot hold; such columns alone."""
    files = ScannedFiles.find_state(paths.state(*split_qualified(table)))
    if files is None:
        return {}
    connection = duckdb.connect()
    columns = {"_lossy": "ARRAY<STRING>", "_deleted": "BOOLEAN"}
    rows = state_rows(connection, files, columns, "state")
    counted = connection.execute(
        f"SELECT name, count(*) FROM (SELECT unnest(_lossy) AS name FROM {rows} WHERE NOT _deleted) "
        "GROUP BY name ORDER BY name"
    ).fetchall()
    return dict(counted)
