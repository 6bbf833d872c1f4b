"""The facts about a captured table: what the role may read of it, and what its log identifies rows by.

Place: part of ``catalog_facts``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblake.base.core.names import qualified
from dblake.base.core.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Identity:
    """The replica identity of one table or partition: what the log contains of an updated or deleted row's old version.

    Reference: PostgreSQL documentation, ALTER TABLE, REPLICA IDENTITY.
    """

    schema: str
    name: str
    kind: str
    """PostgreSQL's letter: d(efault), f(ull), i(ndex), n(othing)."""
    has_usable_key: bool
    """False for a deferrable or invalid primary key, which PostgreSQL does not use to identify rows."""
    has_key: bool
    has_index: bool
    index_covers_key: bool
    is_toastable: bool
    """True if a column of the identity can be stored out of line."""
    has_unpublished_column: bool
    """True from PostgreSQL 18 on if the identity contains a generated column: UPDATE and DELETE fail then."""

    @property
    def is_effective(self) -> bool:
        """True if UPDATE and DELETE succeed at the source once the table is published."""
        identifies = {"d": self.has_usable_key, "f": True, "i": self.has_index, "n": False}
        return not self.has_unpublished_column and identifies[self.kind]


@dataclass(frozen=True)
class Table:
    """One captured table. ``identities`` starts with its own, followed by those of its partitions."""

    oid: int
    schema: str
    name: str
    columns: TableSchema
    has_generated_key: bool
    has_loose_key: bool
    foreign_storage: str
    """Why the log lacks changes of its rows under its name, or ""."""
    identities: tuple[Identity, ...]
    schema_oid: int
    is_partitioned: bool
    can_use_schema: bool
    can_select: bool
    has_hidden_rows: bool
    """True if row security hides rows from the capture role."""
    generated: list[str]
    """Names of generated columns."""
    key_constraint: tuple[str, str] | None
    """Name and immediate definition of the primary key, if it is a constraint of the table."""

    @property
    def qualified(self) -> str:
        """``schema.table`` as in messages."""
        return qualified(self.schema, self.name)

    @property
    def is_publishable(self) -> bool:
        """True if publishing the table makes no write fail at the source."""
        return all(i.is_effective for i in self.identities)
