"""The folders of one source under the warehouse: the one place that spells them, for both halves."""

from __future__ import annotations

from dataclasses import dataclass

from dblake.base.core.names import folder
from dblake.base.lake.storage import join


@dataclass(frozen=True, slots=True)
class Paths:
    """The tables of one source, as paths or URLs that delta-rs and Spark both reach."""

    warehouse: str
    source: str

    @property
    def root(self) -> str:
        """The source's folder."""
        return join(self.warehouse, self.source)

    @property
    def landing(self) -> str:
        """The landing table: what the source sent, undecoded."""
        return join(self.root, "landing")

    @property
    def schemas(self) -> str:
        """The schemas table: every version of every table's schema."""
        return join(self.root, "schemas")

    @property
    def events(self) -> str:
        """The events table: ordered, deduplicated changes."""
        return join(self.root, "events")

    @property
    def windows(self) -> str:
        """The window ledger: how each chunk window ended."""
        return join(self.root, "windows")

    @property
    def verifications(self) -> str:
        """The verification ledger: how each chunk read to verify the copy compared with state."""
        return join(self.root, "verifications")

    @property
    def frontier(self) -> str:
        """The frontier table: which version of each state table holds which position."""
        return join(self.root, "frontier")

    @property
    def states(self) -> str:
        """The folder of all state tables."""
        return join(self.root, "state")

    def state(self, schema: str, table: str) -> str:
        """Return the path of one table's state table, which has one row per key."""
        return join(self.states, folder(schema), folder(table))

    @property
    def redecoded(self) -> str:
        """The redecode ledger: what each redecode run has changed."""
        return join(self.root, "redecoded")

    @property
    def redecode_tables(self) -> str:
        """The folder of a redecode run's staged tables; deleted when the run is done."""
        return join(self.root, "again")

    @property
    def dead_letters(self) -> str:
        """Events that an output could never take, by position."""
        return join(self.root, "dead_letters")

    @property
    def check_results(self) -> str:
        """The results of every run of ``check``."""
        return join(self.root, "quality", "results")

    @property
    def check_pages(self) -> str:
        """The report pages of the newest run of ``check``."""
        return join(self.root, "quality", "docs")


@dataclass(frozen=True, slots=True)
class StagedPaths(Paths):
    """The folders of a source whose reconciled tables are staged in ``folder``, for a redecode run."""

    folder: str

    @property
    def schemas(self) -> str:
        """The staged schemas table."""
        return join(self.folder, "schemas")

    @property
    def events(self) -> str:
        """The staged events table."""
        return join(self.folder, "events")

    @property
    def windows(self) -> str:
        """The staged window ledger."""
        return join(self.folder, "windows")
