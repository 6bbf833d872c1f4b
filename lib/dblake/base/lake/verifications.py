"""The columns of the verification ledger, which ``verification`` writes and SQL shows.

Place: beside the other layouts of the lake. Guarantee: none beyond the types; ``verification.ledger`` states the rows.
"""

from __future__ import annotations

import pyarrow as pa

_KEYS = pa.list_(pa.string())

#: ``key_from`` and ``key_to`` are the keys of the chunk's first and last row, ``columns`` counts the different rows by
#: column. The row of a table's last chunk is ``closing``: it has the extra rows, and how many rows were ``repaired``
#: since the reading before. ``round`` counts the readings of a table: the second and later ones reread wrong keys
#: (``keyed``) or, after ``status`` ``repeat``, the whole table; ``skipped_keys`` are wrong keys that they did not
#: compare. ``lossy`` counts values that are not compared, since their type cannot hold them.
#: ``output`` names the output whose target was compared with state, instead of state with the source.
VERIFICATIONS = pa.schema([
    ("verification_id", pa.string()), ("table", pa.string()), ("chunk_id", pa.string()), ("key_from", pa.string()),
    ("key_to", pa.string()), ("incarnation", pa.int64()), ("lsn", pa.int64()), ("rows_compared", pa.int64()),
    ("rows_skipped", pa.int64()), ("missing", pa.int64()), ("extra", pa.int64()), ("different", pa.int64()),
    ("columns", pa.map_(pa.string(), pa.int64())), ("repaired", pa.int64()),
    ("verified_at", pa.timestamp("us", tz="UTC")), ("missing_keys", _KEYS), ("extra_keys", _KEYS),
    ("different_keys", _KEYS), ("round", pa.int64()), ("keyed", pa.bool_()), ("closing", pa.bool_()),
    ("sampled", pa.bool_()), ("status", pa.string()), ("reason", pa.string()), ("batch", pa.int64()),
    ("skipped_keys", _KEYS), ("lossy", pa.int64()), ("output", pa.string()),
])
