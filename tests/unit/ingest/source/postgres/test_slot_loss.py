"""Why a slot is lost, in words, from what versions of PostgreSQL show."""

from __future__ import annotations

import pytest

from dblake.ingest.source.postgres.slot_loss import describe_loss

CATALOG = "the primary removed rows of the catalog that it still needed (hot_standby_feedback)"


@pytest.mark.parametrize(
    ("reason", "is_conflicting", "words"),
    [
        ("", False, "the server removed log it still needed"),
        ("", True, CATALOG),
        ("rows_removed", True, CATALOG),
        ("wal_level_insufficient", True, "wal_level of the primary was below logical"),
        ("wal_removed", False, "the server removed log it still needed"),
        ("idle_timeout", False, "it was unused for longer than idle_replication_slot_timeout"),
    ],
)
def test_loss_is_named_by_its_reason(reason: str, is_conflicting: bool, words: str) -> None:
    assert describe_loss(reason, is_conflicting) == words
