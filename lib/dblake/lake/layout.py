"""Where everything of one source lies under the warehouse; written once, for both halves."""

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
        """The folder that holds everything of this source."""
        return f"{self.warehouse.rstrip('/')}/{self.source}"

    @property
    def landing(self) -> str:
        """What the source sent, undecoded: the seam between the halves."""
        return f"{self.root}/landing"

    @property
    def schemas(self) -> str:
        """Every version of every table's schema."""
        return f"{self.root}/schemas"

    @property
    def events(self) -> str:
        """Ordered, deduplicated changes."""
        return f"{self.root}/events"

    @property
    def windows(self) -> str:
        """The ledger of chunk windows."""
        return f"{self.root}/windows"

    @property
    def frontier(self) -> str:
        """Which version of each state table holds which position."""
        return f"{self.root}/frontier"

    @property
    def states(self) -> str:
        """The folder all state tables lie under."""
        return f"{self.root}/state"

    def state(self, schema: str, table: str) -> str:
        """One row per key of one table."""
        return f"{self.states}/{folder(schema)}/{folder(table)}"

    @property
    def redecoded(self) -> str:
        """What decoding landing again has changed."""
        return f"{self.root}/redecoded"

    @property
    def again(self) -> str:
        """The folder in which landing is decoded again; gone once that is done."""
        return f"{self.root}/again"

    @property
    def check_results(self) -> str:
        """What every run of ``check`` found."""
        return f"{self.root}/quality/results"

    @property
    def check_pages(self) -> str:
        """The pages of the newest run of ``check``."""
        return f"{self.root}/quality/docs"

    def stream_checkpoint(self, stage: str) -> str:
        """Spark's own checkpoint of a stage's stream; may be deleted, the tables know how far they are."""
        return f"{self.root}/checkpoints/{stage}"


@dataclass(frozen=True, slots=True)
class Beside(Paths):
    """The same source, with the tables that reconcile writes in a folder of their own."""

    folder: str

    @property
    def schemas(self) -> str:
        """Every version of every table's schema, as decoded again."""
        return f"{self.folder}/schemas"

    @property
    def events(self) -> str:
        """Ordered, deduplicated changes, as decoded again."""
        return f"{self.folder}/events"

    @property
    def windows(self) -> str:
        """The ledger of chunk windows, as decoded again."""
        return f"{self.folder}/windows"
