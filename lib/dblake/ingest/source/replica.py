"""Chunks from a replica: watermarks are written on the primary, and rows are read elsewhere.

Place: between a source's two chunk readers. Guarantee: a chunk is read only once the replica has its low watermark. A
replica applies transactions in the primary's order, so the snapshot holds all that the log has before the low
watermark, and nothing after the high one (DBLog, section 3.2). What makes a replica unfit is left to the sources.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Protocol, Self, TypeVar

import pyarrow as pa

from dblake.base.core.errors import DblakeError, ReplicaLags, SourceError, TableUnreadable, Unsupported
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Check, ChunkRead, ChunkReader, ChunkRequest

_WAIT_SECONDS = 3.0
"""How long a chunk waits for the replica. Then other tables have their turn, and a stop is noticed."""
_POLL_SECONDS = 0.01


class _Replicated(Protocol):
    """The settings of a source that may have a replica."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    def at_replica(self) -> Self | None: ...


S = TypeVar("S", bound=_Replicated)


class ReplicaChunkReader:
    """See ChunkReader for the methods. ``address`` is the replica's, for messages.

    ``open_replica`` is called for the first chunk: watermarks and heartbeats must not depend on the replica.
    """

    def __init__(self, primary: ChunkReader, open_replica: Callable[[], ChunkReader], address: str) -> None:
        self._primary, self._open_replica, self._address = primary, open_replica, address
        self.format = primary.format

    @cached_property
    def _replica(self) -> ChunkReader:
        return self._open_replica()

    def mark(self, reader: int, value: str) -> None:
        self._primary.mark(reader, value)

    def beat(self, name: str) -> None:
        self._primary.beat(name)

    def read_mark(self, reader: int) -> str:
        return self._primary.read_mark(reader)

    def split_points(self, table: str, parts: int, rows: int) -> Sequence[tuple[str, ...]]:
        # It samples; and the replica may not have the table yet, or its key.
        return self._primary.split_points(table, parts, rows)

    def read(self, request: ChunkRequest, deliver: Callable[[pa.BinaryArray, TableSchema], None]) -> ChunkRead:
        if request.rows is not None:
            return self._primary.read(request, deliver)
        with self._replica_errors(request.table):
            self._wait_for_low(request)
            # A standby's snapshot has no list of the transactions that it does not show, and needs none: its order of
            # commits is that of the log.
            return replace(self._replica.read(request, deliver), snapshot=None)

    def _wait_for_low(self, request: ChunkRequest) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._replica.read_mark(request.reader) != request.low:
            if time.monotonic() > deadline:
                raise ReplicaLags(
                    f"table {request.table}: the replica at {self._address} has not received the chunk's watermark",
                    next_step="check that it replicates source.host and how far it lags, or remove source.replica",
                )
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _replica_errors(self, table: str) -> Iterator[None]:
        """Put the table off if the replica fails, whatever the error: the log must not depend on it."""
        try:
            yield
        except (Unsupported, TableUnreadable):
            raise
        except SourceError as error:
            self._close_replica()
            raise ReplicaLags(
                f"table {table}: the replica at {self._address} fails: {error.what}", next_step=error.next_step
            ) from error

    def _close_replica(self) -> None:
        if (replica := self.__dict__.pop("_replica", None)) is not None:
            replica.close()

    def close(self) -> None:
        self._primary.close()
        self._close_replica()


def open_chunk_reader(
    settings: S, connect: Callable[[S], ChunkReader], require_fit: Callable[[S], None]
) -> ChunkReader:
    """Return a chunk reader of the source, with chunks from its replica if it has one.

    ``require_fit`` raises Unsupported for a replica whose chunks could be wrong.
    """
    primary, replica = connect(settings), settings.at_replica()
    if replica is None:
        return primary

    def open_replica() -> ChunkReader:
        require_fit(replica)
        return connect(replica)

    return ReplicaChunkReader(primary, open_replica, f"{replica.host}:{replica.port}")


def check_replica(settings: S, require_fit: Callable[[S], None]) -> list[Check]:
    """Return the check ``replica`` of a source that has one. Capture needs the replica for dumps alone."""
    replica = settings.at_replica()
    if replica is None:
        return []
    try:
        require_fit(replica)
    except DblakeError as error:
        return [Check("replica", False, error.what, error.next_step, affects="nothing")]
    return [Check("replica", True)]
