"""LSNs and transaction ids as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from dblake.base.core.log_places import lsn_number
from dblake.ingest.source.postgres.lsn import lsn_text, widen

EPOCH = 1 << 32


@pytest.mark.parametrize(
    ("xids", "near", "wide"),
    [
        ([3, 700], 750, [3, 700]),
        # In the fourth epoch of the server's ids; of a transaction that began before, and after, they wrapped around.
        ([3, 700], 3 * EPOCH + 750, [3 * EPOCH + 3, 3 * EPOCH + 700]),
        ([EPOCH - 5], 3 * EPOCH + 10, [3 * EPOCH - 5]),
        ([7], 3 * EPOCH - 10, [3 * EPOCH + 7]),
    ],
)
def test_xid_is_widened_to_nearest_epoch(xids: list[int], near: int, wide: list[int]) -> None:
    """A snapshot has 64-bit ids: an event whose id lacks the epoch would count as visible to every chunk."""
    assert widen(np.array(xids, np.int64), near).tolist() == wide


def test_lsn_text_round_trips() -> None:
    assert (lsn_number("16/B374D848"), lsn_text(lsn_number("16/B374D848"))) == (0x16B374D848, "16/B374D848")
