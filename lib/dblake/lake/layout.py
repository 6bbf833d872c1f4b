"""The folders of one source under the warehouse: the one place that spells them, for both halves."""

from __future__ import annotations

from dataclasses import dataclass

from dblake.core.names import folder


@dataclass(frozen=True, slots=True)
class Paths:
    """The tables of one source, as paths or URLs that delta-rs and Spark both reach."""

    warehouse: str
    source: str

    @property
    def root(self) -> str:
        """The source's folder."""
        return f"{self.warehouse.rstrip('/')}/{self.source}"

    @property
    def landing(self) -> str:
        """The landing table: what the source sent, undecoded."""
        return f"{self.root}/landing"

    @property
    def schemas(self) -> str:
        """The schemas table: every version of every table's schema."""
        return f"{self.root}/schemas"

    @property
    def events(self) -> str:
        """The events table: ordered, deduplicated changes."""
        return f"{self.root}/events"

    @property
    def windows(self) -> str:
        """The window ledger: how each chunk window ended."""
        return f"{self.root}/windows"

    @property
    def frontier(self) -> str:
        """The frontier table: which version of each state table holds which position."""
        return f"{self.root}/frontier"

    @property
    def states(self) -> str:
        """The folder of all state tables."""
        return f"{self.root}/state"

    def state(self, schema: str, table: str) -> str:
        """Return the path of one table's state table, which has one row per key."""
        return f"{self.states}/{folder(schema)}/{folder(table)}"

    @property
    def redecoded(self) -> str:
        """The redecode ledger: what each redecode run has changed."""
        return f"{self.root}/redecoded"

    @property
    def redecode_tables(self) -> str:
        """The folder of a redecode run's staged tables; deleted when the run is done."""
        return f"{self.root}/again"

    @property
    def check_results(self) -> str:
        """The results of every run of ``check``."""
        return f"{self.root}/quality/results"

    @property
    def check_pages(self) -> str:
        """The report pages of the newest run of ``check``."""
        return f"{self.root}/quality/docs"


@dataclass(frozen=True, slots=True)
class StagedPaths(Paths):
    """The folders of a source whose reconciled tables are staged in ``folder``, for a redecode run."""

    folder: str

    @property
    def schemas(self) -> str:
        """The staged schemas table."""
        return f"{self.folder}/schemas"

    @property
    def events(self) -> str:
        """The staged events table."""
        return f"{self.folder}/events"

    @property
    def windows(self) -> str:
        """The staged window ledger."""
        return f"{self.folder}/windows"
