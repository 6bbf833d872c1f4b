"""What happened to a table since a chunk was read: keys with events, truncates and schema changes.

Place: between landing's chunks and the comparison with state. Guarantee: a key without an entry here has, among all
events of the table, none that the chunk may not reflect, neither in its window nor after it. That is the window rule
(``core.window``) without its upper end, because state may be ahead of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.base.core.visibility import are_visible
from dblake.base.core.window import Snapshot
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_arrow, quoted
from dblake.base.lake.schemas import SchemaVersion
from dblake.base.lake.tables import find_table
from dblake.payloads.decode.columns import IMAGE
from dblake.transform.state.fold import key_texts

_EVENTS = pa.schema({
    "incarnation": pa.int64(), "lsn": pa.int64(), "seq": pa.int64(), "op": pa.string(), "key": IMAGE,
    "txid": pa.int64(),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Read:
    """What a read reflects: everything up to ``low`` that ``snapshot`` sees; without one, everything up to ``low``."""

    low: Position
    snapshot: Snapshot | None


class Touched:
    """A table's events that one of several reads may not reflect, from the newest version of the events table."""

    def __init__(self, paths: Paths, table: str, primary_key: tuple[str, ...], reads: list[Read]) -> None:
        oldest = min(read.low for read in reads)
        since = f"lsn >= {oldest.lsn}"
        snapshots = [read.snapshot for read in reads if read.snapshot]
        if snapshots:
            since = f"({since} OR txid >= {min(snapshot.xmin for snapshot in snapshots)})"
        events = find_table(paths.events)
        rows = query_arrow(
            events,
            f'SELECT {", ".join(_EVENTS.names)} FROM t WHERE "table" = {quoted(table)} AND '
            f"(incarnation > {oldest.incarnation} OR (incarnation = {oldest.incarnation} AND {since}))",
        ) if events else _EVENTS.empty_table()
        rows = rows.cast(_EVENTS)
        self._at = [rows[name].to_numpy() for name in Position.COLUMNS]
        self._txid = rows["txid"].fill_null(-1).to_numpy()
        self._truncates = pc.equal(rows["op"], Op.TRUNCATE).to_numpy().astype(bool)
        # All keys may be more than the 2 GiB that one array holds.
        self._keys = pa.chunked_array([key_texts(part, primary_key) for part in rows["key"].chunks], pa.string())

    def keys(self, read: Read) -> pa.ChunkedArray:
        """Return the keys, in state's form, of events that the read may not reflect."""
        return self._keys.filter(pa.array(self._holds(read)))

    def has_truncate(self, read: Read) -> bool:
        """Return True if the table was truncated after the read."""
        return bool((self._holds(read) & self._truncates).any())

    def _holds(self, read: Read) -> np.ndarray:
        after = is_older(position_parts(read.low), self._at)
        if read.snapshot is None:
            return after
        is_unseen = ~are_visible(self._txid, read.snapshot)
        is_touched: np.ndarray = after | ((self._at[0] == read.low.incarnation) & is_unseen)
        return is_touched


def schema_change(versions: list[SchemaVersion], schema_id: str, low: Position) -> bool:
    """Return True if a table's schema is, or was since ``low``, another one than that of a chunk.

    ``versions`` are those of the schemas table, oldest first.
    """
    return versions[-1].schema.schema_id != schema_id or any(
        version.since > low and version.schema.schema_id != schema_id for version in versions
    )
