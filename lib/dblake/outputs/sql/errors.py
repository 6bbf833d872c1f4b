"""Errors of a target database, without values, statements or connection strings."""

from __future__ import annotations

from dblake.core.errors import ConsumeError, DblakeError, OutputUnavailable
from dblake.outputs.sql.settings import SqlSettings


class ValueRejected(Exception):
    """The target cannot hold a value of the staged rows. Internal: ``output`` names its event.

    ``column`` is the number of the staged column, or its name; None if the target does not name it. ``row`` is the
    number of the staged row, if known.
    """

    def __init__(self, reason: str, column: int | str | None = None, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.column, self.row = reason, column, row


def target_failure(settings: SqlSettings, product: str, reason: str, *, permanent: bool) -> DblakeError:
    """Return the error for a failed statement or connection; ``permanent`` if only a person can correct it."""
    where = f"output {settings.name}: the target's {product} at {settings.host} failed: {reason}"
    if permanent:
        return ConsumeError(
            where, next_step="check the output's url, password, tls and schema, and the role's privileges there"
        )
    return OutputUnavailable(where, next_step="check that the server is up and reachable, then run again")
