"""Verification chunks in landing: which have ended, and their rows, decoded.

Place: first step of ``run``. Guarantee: the rows of a chunk that ``find_whole`` returns are all that it read. A few
rows are held at a time, whatever the size of a chunk. The statistics of landing's files rule out those without such
rows, so the search for new ones costs one read of landing's log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.window import ChunkWindow
from dblake.base.lake.files import file_path, filesystem, group_bounds
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows, quoted
from dblake.base.lake.tables import list_files, open_table
from dblake.landing.columns import BATCH, CHUNK, CHUNK_ID, KIND, LEASE_EPOCH, VERIFY_CHUNK, VERIFY_HIGH
from dblake.landing.control import CLOSED, ChunkEnd, DumpStart
from dblake.operate.verification.ledger import Round
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import DECODED, DECODER_INPUT
from dblake.transform.reconcile.batch_summary import RowGroups
from dblake.transform.reconcile.task import landed_rows, slices


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


def find_whole(paths: Paths, chunks: Sequence[EndedChunk]) -> set[str]:
    """Return the ids of the chunks whose rows are all in landing.

    Maintenance has removed rows of the others.
    """
    counted = {chunk.window.chunk_id for chunk in chunks if not chunk.rows}
    wanted = [chunk for chunk in chunks if chunk.rows]
    if not wanted:
        return counted
    first, last = _batches(wanted)
    ids = ", ".join(quoted(chunk.window.chunk_id) for chunk in wanted)
    rows = query_rows(
        paths.landing, f"SELECT chunk_id, lease_epoch, count(*) AS rows FROM t WHERE kind = '{VERIFY_CHUNK}' "
                       f"AND chunk_id IN ({ids}) AND batch BETWEEN {first} AND {last} GROUP BY chunk_id, lease_epoch",
    )
    landed = {(row["chunk_id"], row["lease_epoch"]): row["rows"] for row in rows}
    return counted | {chunk.window.chunk_id for chunk in wanted if landed.get(_name(chunk)) == chunk.rows}


def read_rows(
    paths: Paths, chunks: Sequence[EndedChunk], schemas: Mapping[str, TableSchema]
) -> Iterator[tuple[EndedChunk, pa.Table]]:
    """Yield the rows of chunks as DECODED, some rows of one chunk at a time, bounded in rows and in bytes.

    They come as they lie in landing: the number of each row in its chunk is in ``seq``.
    """
    by_name = {_name(chunk): chunk for chunk in chunks if chunk.rows}
    if not by_name:
        return
    for landed in landed_rows(_parts(paths, *_batches(by_name.values())), (LEASE_EPOCH, *DECODER_INPUT.names)):
        rows = landed.filter(pc.equal(landed.column(KIND), VERIFY_CHUNK))
        for chunk_id in pc.unique(rows.column(CHUNK_ID)).to_pylist():
            of_id = rows.filter(pc.equal(rows.column(CHUNK_ID), chunk_id))
            for epoch in pc.unique(of_id.column(LEASE_EPOCH)).to_pylist():
                if chunk := by_name.get((chunk_id, epoch)):
                    of_chunk = of_id.filter(pc.equal(of_id.column(LEASE_EPOCH), epoch))
                    for part in slices(of_chunk):
                        yield chunk, pa.Table.from_batches([decode(_as_chunk_rows(part), schemas)], DECODED)


def _as_chunk_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pa.repeat(pa.scalar(CHUNK, f.type), rows.num_rows) if f.name == KIND else rows.column(f.name).cast(f.type)
        for f in DECODER_INPUT
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DECODER_INPUT)


def _parts(paths: Paths, first: int, last: int) -> Iterator[RowGroups]:
    """Yield the row groups of landing that may have rows of verification chunks in these batches, in order."""
    files = list_files(open_table(paths.landing))
    for column, low, high in ((BATCH, first, last), (KIND, VERIFY_CHUNK, VERIFY_CHUNK)):
        if {f"min.{column}", f"max.{column}"} <= set(files.column_names):
            is_near = pc.and_(pc.less_equal(files[f"min.{column}"], high),
                              pc.greater_equal(files[f"max.{column}"], low))
            files = files.filter(pc.fill_null(is_near, True))
    if f"max.{BATCH}" in files.column_names:
        files = files.sort_by(f"max.{BATCH}")
    for file in files["path"].to_pylist():
        path = file_path(paths.landing, file)
        system, inside = filesystem(path)
        with pq.ParquetFile(inside, filesystem=system) as parquet:
            groups = tuple(
                number for number in range(parquet.num_row_groups)
                if _may_have_chunks(parquet.metadata.row_group(number))
            )
        yield RowGroups(path, groups, 0)


def _may_have_chunks(facts: pq.RowGroupMetaData) -> bool:
    low, high = group_bounds(facts, (KIND,))
    return bool(low.get(KIND, VERIFY_CHUNK) <= VERIFY_CHUNK <= high.get(KIND, VERIFY_CHUNK))


def _batches(chunks: Collection[EndedChunk]) -> tuple[int, int]:
    return min(chunk.window.first_batch for chunk in chunks), max(chunk.batch for chunk in chunks)


def _name(chunk: EndedChunk) -> tuple[str, int]:
    return chunk.window.chunk_id, chunk.window.lease_epoch
