"""What the columns of events mean, which ``files.EVENT_COLUMNS`` lists, and the columns of the window ledger.

Place: between reconcile, which writes both tables, and all readers. ``decode.columns`` defines the
images. Guarantee: events are ordered by ``(incarnation,
lsn, seq)``, and no two share a position. ``origin`` is ``log`` or ``dump``. ``op`` is a letter of ``decode.columns``
or ``f``, a fill: its image has only the columns that no event of the key in the chunk's window carried. A ``d`` with
origin ``dump`` deletes a key that earlier events hold and that a dump of the whole table did not return. A dumped row
has the position of its high watermark: ``lsn`` is the watermark's, ``seq`` is twice the row's number in its chunk, and
``batch`` is the landing batch of the high watermark.
"""

from __future__ import annotations

import pyarrow as pa

from dblake.base.core.position import Position

_LONGS, _TEXTS = pa.int64(), pa.string()

#: The window ledger. The chunk was read under the schema ``schema_id``. ``began`` is the position at which a dump of
#: the whole table began; only the dump's last chunk has it.
WINDOWS = pa.schema([
    ("chunk_id", _TEXTS), ("dump_id", _TEXTS), ("table", _TEXTS), ("lease_epoch", _LONGS), ("incarnation", _LONGS),
    ("low_lsn", _LONGS), ("high_lsn", _LONGS), ("rows_read", _LONGS), ("rows_emitted", _LONGS),
    ("rows_dropped", _LONGS), ("rows_filled", _LONGS), ("rows_removed", _LONGS), ("schema_id", _TEXTS),
    ("status", _TEXTS), ("reason", _TEXTS), ("closed_at", pa.timestamp("us", tz="UTC")),
    ("began", pa.struct([(name, _LONGS) for name in Position.COLUMNS])), ("batch", _LONGS),
])
