"""Why a server has given up a replication slot, in words.

Place: below ``slot`` and preflight, which report the loss.
"""

from __future__ import annotations


def describe_loss(reason: str, is_conflicting: bool) -> str:
    """Return why the server gave a slot up; ``reason`` is its own word, which servers before 17 do not have."""
    if reason == "wal_level_insufficient":
        return "wal_level of the primary was below logical"
    if reason == "idle_timeout":
        return "it was unused for longer than idle_replication_slot_timeout"
    if is_conflicting or reason == "rows_removed":
        return "the primary removed rows of the catalog that it still needed (hot_standby_feedback)"
    return "the server removed log it still needed"
