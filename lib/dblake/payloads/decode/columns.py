r"""The columns of decoded rows, the same for all payload formats.

``key``, ``before`` and ``after`` map column names to the source's own canonical text. **A column that is absent was not
sent; a column whose value is null is NULL.**

``key_before`` is the old key where a key change became this create, and null otherwise.
``op`` is ``c`` create, ``u`` update, ``d`` delete, ``t`` truncate, or ``r`` for a row that a chunk read. An update that
changes the key becomes ``d`` of the old key at
``seq`` and ``c`` of the new one at ``seq + 1``. ``partial`` is true where ``after`` lacks columns of the schema.
``undecoded`` names the columns whose bytes are not valid text: their values are ``\x`` and hex digits.
"""

from __future__ import annotations

import pyarrow as pa

from dblake.landing.columns import (
    BATCH,
    CHUNK_ID,
    COMMITTED_AT,
    FORMAT,
    INCARNATION,
    KIND,
    LANDING,
    LAST_IN_TXN,
    LSN,
    PAYLOAD,
    SCHEMA_ID,
    SEQ,
    TABLE,
    TXID,
)

OP, KEY, BEFORE, AFTER, PARTIAL, UNDECODED = "op", "key", "before", "after", "partial", "undecoded"
KEY_BEFORE = "key_before"

IMAGE = pa.map_(pa.string(), pa.string())

#: The landing columns that decoding requires, in this order.
DECODER_INPUT = pa.schema(
    [LANDING.field(n) for n in (BATCH, INCARNATION, LSN, SEQ, KIND, TABLE, SCHEMA_ID, TXID, COMMITTED_AT,
                                LAST_IN_TXN, CHUNK_ID, FORMAT, PAYLOAD)]
)

#: The columns that decoding returns; rows are in no particular order.
DECODED = pa.schema(
    [
        *(LANDING.field(n) for n in (BATCH, INCARNATION, LSN, SEQ, TABLE)),
        pa.field(OP, pa.string()),
        pa.field(KEY, IMAGE),
        pa.field(BEFORE, IMAGE),
        pa.field(AFTER, IMAGE),
        pa.field(PARTIAL, pa.bool_()),
        pa.field(UNDECODED, pa.list_(pa.string())),
        pa.field(KEY_BEFORE, IMAGE),
        *(LANDING.field(n) for n in (SCHEMA_ID, TXID, COMMITTED_AT, LAST_IN_TXN, CHUNK_ID)),
    ]
)
