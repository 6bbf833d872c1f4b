"""Verification chunks in landing: which have ended, and their rows, decoded.

Place: first step of ``run``. Guarantee: a chunk's rows are all that it read, or ``read_rows`` returns None. The
statistics of landing's files rule out those without such rows, so looking for new ones costs one read of landing's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.window import ChunkWindow
from dblake.decode.batch import decode
from dblake.decode.columns import DECODED, DECODER_INPUT
from dblake.lake.layout import Paths
from dblake.lake.query import query_arrow, query_rows, quoted
from dblake.lake.tables import open_table
from dblake.landing.columns import CHUNK, CHUNK_ID, KIND, LANDING, LEASE_EPOCH, SEQ, VERIFY_CHUNK, VERIFY_HIGH
from dblake.landing.control import CLOSED, ChunkEnd, DumpStart
from dblake.verification.ledger import Round

_DECODED_ROWS = 16_384
"""Rows that are decoded at once: more no longer stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class EndedChunk:
    """A chunk whose high watermark has landed in ``batch``; ``began`` is set for the last one of its request."""

    round: Round
    window: ChunkWindow
    batch: int
    began: DumpStart | None
    repeat: str | None
    sampled: bool

    @property
    def table(self) -> str:
        """The table's qualified name."""
        return self.window.table

    @property
    def rows(self) -> int:
        """The number of rows read."""
        return self.window.rows


def read_ended(paths: Paths, first: int, last: int, *, table: str | None = None) -> list[EndedChunk]:
    """Return the chunks that end in batches ``first`` to ``last``, in order; those that capture discarded are not."""
    where = f"kind = '{VERIFY_HIGH}' AND batch BETWEEN {first} AND {last}"
    if table is not None:
        where += f' AND "table" = {quoted(table)}'
    rows = query_rows(
        paths.landing, 'SELECT batch, lease_epoch, incarnation, lsn, seq, "table", chunk_id, payload FROM t '
                       f"WHERE {where} ORDER BY batch, incarnation, lsn, seq",
    )
    ended = []
    for row in rows:
        end = ChunkEnd.from_json(row["payload"])
        if end.status != CLOSED:
            continue
        window = end.window(
            chunk_id=row["chunk_id"], table=row["table"], lease_epoch=row["lease_epoch"],
            high=Position(row["incarnation"], row["lsn"], row["seq"]),
        )
        ended.append(EndedChunk(Round.parse(end.dump_id), window, row["batch"], end.began, end.repeat, end.sampled))
    return ended


def read_rows(
    paths: Paths, chunks: Sequence[EndedChunk], schemas: Mapping[str, TableSchema]
) -> dict[str, pa.Table | None]:
    """Return each chunk's rows as DECODED, in the order in which they were read, by chunk id.

    None for a chunk of which landing has more or fewer rows than were read: maintenance has removed them.
    """
    wanted = [chunk for chunk in chunks if chunk.rows]
    found = {chunk.window.chunk_id: DECODED.empty_table() if not chunk.rows else None for chunk in chunks}
    if not wanted:
        return found
    first, last = min(chunk.window.first_batch for chunk in wanted), max(chunk.batch for chunk in wanted)
    ids = ", ".join(quoted(chunk.window.chunk_id) for chunk in wanted)
    columns = ", ".join(f'"{name}"' for name in (LEASE_EPOCH, *DECODER_INPUT.names))
    rows = query_arrow(
        open_table(paths.landing), f"SELECT {columns} FROM t WHERE kind = '{VERIFY_CHUNK}' AND chunk_id IN ({ids}) "
                       f"AND batch BETWEEN {first} AND {last}",
    ).cast(pa.schema([LANDING.field(name) for name in (LEASE_EPOCH, *DECODER_INPUT.names)]))
    for chunk in wanted:
        own = pc.and_(pc.equal(rows[CHUNK_ID], chunk.window.chunk_id),
                      pc.equal(rows[LEASE_EPOCH], chunk.window.lease_epoch))
        of_chunk = rows.filter(own).select(DECODER_INPUT.names)
        if of_chunk.num_rows == chunk.rows:
            found[chunk.window.chunk_id] = _decoded(of_chunk, schemas)
    return found


def _decoded(rows: pa.Table, schemas: Mapping[str, TableSchema]) -> pa.Table:
    kind = rows.schema.get_field_index(KIND)
    rows = rows.set_column(kind, KIND, pa.repeat(CHUNK, rows.num_rows)).cast(DECODER_INPUT)
    parts = [decode(batch, schemas) for batch in rows.combine_chunks().to_batches(max_chunksize=_DECODED_ROWS)]
    decoded = pa.Table.from_batches(parts, DECODED).combine_chunks()
    return decoded.take(pa.array(np.argsort(decoded[SEQ].to_numpy(), kind="stable")))
