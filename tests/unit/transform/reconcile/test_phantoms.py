"""The end of a dump deletes no key if its first chunk may have missed an event of that key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dblake.transform.reconcile.keys import KNOWN
from dblake.transform.reconcile.phantoms import ENDS, compare_keys


def known_row(op: str, lsn: int, txid: int | None) -> dict[str, Any]:
    return {"table": "public.t", "op": op, "txid": txid, "incarnation": 1, "lsn": lsn, "seq": 0, "key_text": "7",
            "key": [("id", "7")]}


@pytest.mark.parametrize("newest", [
    pytest.param(known_row("f", 20, 5), id="a fill among events"),
    pytest.param(known_row("r", 20, None), id="a fill in state"),
])
@pytest.mark.parametrize(("txid", "absent"), [(9, []), (4, ["7"])], ids=["create not seen", "create seen"])
def test_key_created_unseen_before_fill_is_kept(newest: dict[str, Any], txid: int, absent: list[str]) -> None:
    """A row came to the key by a key change, then a fill completed it: the fill's own transaction was visible."""
    known = pa.Table.from_pylist([known_row("c", 10, txid), newest], KNOWN)
    at = {"incarnation": 1, "lsn": 30, "seq": 0}
    end = {"w_table": "public.t", "chunk_id": "k", "end": at | {"lsn": 40}, "began": at, "emptied": False,
           "snapshot": "6:10:9"}
    candidates = compare_keys(known, pa.Table.from_pylist([end], ENDS))
    assert candidates.filter(candidates["is_absent"])["key_text"].to_pylist() == absent
