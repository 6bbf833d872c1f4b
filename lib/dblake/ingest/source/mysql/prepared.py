"""Rows of XA transactions that are prepared and not committed yet: held in memory until their end, or dropped.

Below ``pieces``. The log has the rows at PREPARE, and they may still be rolled back; so they land with the commit, at
its position, or never. Promises a limit on the memory of all prepared transactions together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dblake.base.core.errors import Unsupported
from dblake.base.core.schema import TableSchema

_MAX_HELD_BYTES = 256 << 20
"""Payload bytes held for all prepared transactions together."""


@dataclass(slots=True)
class PreparedTransaction:
    """Rows held (seq, schema and payload) and a resume token from before the transaction."""

    rows: list[tuple[int, TableSchema, bytes]] = field(default_factory=list)
    bytes: int = 0
    token: str = ""


class PreparedTransactions:
    """The prepared transactions by name, oldest first, and the open one that is about to be prepared."""

    def __init__(self) -> None:
        self.open: PreparedTransaction | None = None
        """Set while the open transaction is an XA transaction whose rows are held."""
        self._by_name: dict[str, PreparedTransaction] = {}

    def __bool__(self) -> bool:
        """Return whether any transaction is prepared."""
        return bool(self._by_name)

    @property
    def oldest_token(self) -> str | None:
        """The resume token from before the oldest prepared transaction, None if there is none."""
        return next((prepared.token for prepared in self._by_name.values()), None)

    def hold(self, seq: int, schema: TableSchema, payload: bytes) -> None:
        """Hold a row of the open transaction. Raises Unsupported above the memory limit."""
        assert self.open is not None
        self.open.rows.append((seq, schema, payload))
        self.open.bytes += len(payload)
        if self.open.bytes + sum(other.bytes for other in self._by_name.values()) > _MAX_HELD_BYTES:
            raise Unsupported(
                f"XA transactions that are prepared but not committed have more than {_MAX_HELD_BYTES >> 20} MiB of"
                " rows",
                next_step="commit or roll back those that XA RECOVER lists, and commit in smaller steps;"
                " capture --accept-gap starts behind them",
            )

    def prepare(self, name: str, token: str) -> None:
        """Keep the open transaction under its name; ``token`` is the position from which it would be read again."""
        if self.open is not None:
            self.open.token = token
            self._by_name[name] = self.open

    def pop(self, name: str) -> PreparedTransaction:
        """Remove a prepared transaction and return it. Raises KeyError if this stream did not see it prepared."""
        return self._by_name.pop(name)

    def drop(self, name: str) -> None:
        """Drop a prepared transaction that was rolled back, if this stream saw it prepared."""
        self._by_name.pop(name, None)
