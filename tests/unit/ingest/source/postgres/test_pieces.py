"""Pieces of log that are cut inside a transaction: what is read again after one is not in it."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from dblake.base.core.position import ResumePoint
from dblake.base.core.source import HEARTBEAT_ROW
from dblake.base.core.source.heartbeats import new_heartbeat_name, unchained_heartbeat
from dblake.ingest.source.postgres.pieces import PieceBuilder

_NO_TABLES = cast("Any", SimpleNamespace(
    table_numbers=lambda payloads: np.zeros(len(payloads), int), first_unresolved=lambda _: None, rejected={},
    partitions={},
))


def _begin(lsn: int, txid: int) -> bytes:
    return b"B" + struct.pack(">qqi", lsn, 0, txid)


def _commit(lsn: int, end: int) -> bytes:
    return b"C\0" + struct.pack(">qqq", lsn, end, 0)


def test_piece_cut_behind_a_watermark_message_holds_it_back() -> None:
    pieces = PieceBuilder(_NO_TABLES, ResumePoint(1, "0/32", None), 5)
    first, second = (unchained_heartbeat(new_heartbeat_name()) for _ in range(2))
    pieces.run.begin(_begin(0x100, 5))
    pieces.add_watermark(HEARTBEAT_ROW, first)
    pieces.run.open, pieces.committed = False, _commit(0x100, 0x110)
    pieces.run.begin(_begin(0x200, 6))
    pieces.add_watermark(HEARTBEAT_ROW, second)
    inside = pieces.cut(inside=True)
    assert [mark.value for mark in inside.watermarks] == [first], "the log is read again from before the second"
    assert inside.reached == ResumePoint(1, "0/110", None)
    pieces.run.open, pieces.committed = False, _commit(0x200, 0x210)
    whole = pieces.cut(inside=False)
    assert [mark.value for mark in whole.watermarks] == [second]
    assert whole.reached.token == "0/210"
