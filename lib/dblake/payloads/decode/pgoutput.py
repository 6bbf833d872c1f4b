"""Decode PostgreSQL's pgoutput rows: Insert, Update and Delete messages to changes.

Called by ``batch`` for landing rows of kind ``row``; ``pgoutput_tuples`` finds the values. Guarantees: a message is
decoded to its last byte or rejected. A column that the server did not send is absent, never NULL. Layout:
``formats.pgoutput``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dblake.payloads.decode.payloads import Changes, Payloads
from dblake.payloads.decode.pgoutput_tuples import read_tuples
from dblake.payloads.decode.row_changes import Images, row_changes
from dblake.payloads.decode.toast import fill_unchanged
from dblake.payloads.formats.pgoutput import (
    COUNT_BYTES,
    DELETE,
    INSERT,
    KEY_TUPLE,
    LETTER_OFFSET,
    NEW_TUPLE,
    OLD_TUPLE,
    TEXT,
    TUPLE_OFFSET,
    UNCHANGED,
    UPDATE,
)

_MIN_BYTES = TUPLE_OFFSET + 1 + COUNT_BYTES


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Return the changes of Insert, Update and Delete messages of one schema. Raises ReconcileError."""
    data, starts = payloads.data, payloads.starts
    payloads.reject(payloads.ends - starts < _MIN_BYTES, "the message is cut short")
    letter, first_tuple = data[starts + LETTER_OFFSET], data[starts + TUPLE_OFFSET]
    has_old = (first_tuple == KEY_TUPLE) | (first_tuple == OLD_TUPLE)
    has_new = first_tuple == NEW_TUPLE
    is_valid = ((letter == INSERT) & has_new) | ((letter == UPDATE) & (has_old | has_new))
    payloads.reject(~(is_valid | ((letter == DELETE) & has_old)), "the message is no Insert, Update or Delete")

    olds, news = np.flatnonzero(has_old), np.flatnonzero(letter != DELETE)
    offsets = starts + TUPLE_OFFSET
    old, offsets[olds] = read_tuples(payloads, olds, offsets[olds], "old")
    payloads.reject(data.take(offsets[news], mode="clip") != NEW_TUPLE, "the message has no new row", rows=news)
    new, offsets[news] = read_tuples(payloads, news, offsets[news], "new")
    payloads.reject(offsets != payloads.ends, "the message does not end where its last value does")

    old_of = np.full(len(payloads), -1)
    old_of[olds] = np.arange(len(olds))
    # Identity columns are never NULL: where a key tuple has a null, the column was not sent.
    old_sent = np.where((first_tuple[olds] == KEY_TUPLE)[:, None], old.tags == TEXT, old.tags != UNCHANGED)
    old_grid = old.grid(payloads, old_sent)
    new_grid = new.grid(payloads, new.tags != UNCHANGED)
    new_grid = fill_unchanged(new_grid, old_grid, old_of[news])
    return row_changes(
        payloads, Images(olds, old_grid, letter[olds] == DELETE), Images(news, new_grid, letter[news] == INSERT),
        old_of[news],
        key_missing=f"ALTER TABLE {payloads.schema.table} REPLICA IDENTITY DEFAULT, then dump the table again",
    )
