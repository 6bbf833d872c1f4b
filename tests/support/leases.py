"""Leases that tests take away."""

from __future__ import annotations

from dblake.ingest.capture.local_lease import LocalLease


class RevocableLease(LocalLease):
    """A lease of one machine that a test makes uncertain, or takes away, as ZooKeeper's can be."""

    is_certain = True
    why_lost: str | None = None

    def held(self) -> bool:
        return super().held() and self.is_certain

    def lost(self) -> str | None:
        return self.why_lost
