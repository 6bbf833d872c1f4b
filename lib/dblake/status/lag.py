"""How far each stage is, from what the tables say of themselves: no JVM, and hardly a file is read.

Landing's files carry, as Delta statistics, which batches are in them, up to which position and commit time. So the
batch a later stage has reached says how old what it shows is, and how much waits for it. Only a file that upkeep has
put together, and that a stage stands in the middle of, is looked into.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from dblake.lake.layout import Paths
from dblake.lake.log import Application, newest_batch, query_rows

_STATISTICS = tuple(
    f"{end}.{name}" for end in ("min", "max") for name in ("batch", "incarnation", "lsn", "committed_at")
)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage holds: everything up to ``position``, which was committed ``lag_seconds`` ago.

    ``lag_bytes`` and ``lag_transactions`` wait for it in the stage before; None if that cannot be told.
    """

    position: str | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    lag_transactions: int | None = None


def read_stages(paths: Paths, state: int, behind_log: int | None) -> dict[str, Stage]:
    """All stages, the first one first, given the batch that state has reached.

    ``behind_log`` are the bytes of log that have not landed.
    """
    landed = _Landed(paths.landing)
    events = newest_batch(paths.events, Application.reconcile(paths.source))
    return {
        "landing": landed.stage(landed.newest, behind_log, None),
        "events": landed.stage(events, *landed.after(events)),
        "state": landed.stage(state, *landed.after(state)),
    }


class _Landed:
    """What landing's files say of the batches in them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: list[dict[str, Any]] = []
        if DeltaTable.is_deltatable(path):
            files = pa.table(DeltaTable(path).get_add_actions(flatten=True))
            # A table without files has no statistics either.
            if set(_STATISTICS) <= set(files.column_names):
                self._files = files.select([*_STATISTICS, "size_bytes"]).to_pylist()
        self.newest = max((file["max.batch"] for file in self._files), default=0)

    def stage(self, batch: int, lag_bytes: int | None, lag_transactions: int | None) -> Stage:
        """The stage that has reached ``batch``."""
        places, times = [], []
        for file in self._files:
            if file["min.batch"] > batch:
                continue
            if file["max.batch"] > batch or file["min.incarnation"] != file["max.incarnation"]:
                place, time = self._look(file, batch)
            else:
                place, time = (file["max.incarnation"], file["max.lsn"]), file["max.committed_at"]
            places += [place] if place[1] is not None else []
            times += [time] if time is not None else []
        if not places:
            return Stage(lag_bytes=lag_bytes, lag_transactions=lag_transactions)
        lag = (datetime.now(UTC) - max(times).astimezone(UTC)).total_seconds() if times else None
        incarnation, lsn = max(places)
        return Stage(
            f"{incarnation}/{lsn}", None if lag is None else round(max(lag, 0), 1), lag_bytes, lag_transactions
        )

    def after(self, batch: int) -> tuple[int, int]:
        """About how many bytes, and how many transactions of the log, landed after a batch."""
        size = 0.0
        for file in self._files:
            first, last = file["min.batch"], file["max.batch"]
            size += file["size_bytes"] * max(last - max(batch, first - 1), 0) / (last - first + 1)
        if batch >= self.newest:
            return round(size), 0
        (row,) = query_rows(self._path, f"SELECT count(*) AS n FROM t WHERE batch > {batch} AND last_in_txn")
        return round(size), row["n"]

    def _look(self, file: dict[str, Any], batch: int) -> tuple[tuple[int, int | None], datetime | None]:
        """The newest position and commit time of a file's batches up to one."""
        span = f"batch BETWEEN {file['min.batch']} AND {batch}"
        (time,) = query_rows(self._path, f"SELECT max(committed_at) AS at FROM t WHERE {span}")
        places = query_rows(
            self._path, f"SELECT incarnation, max(lsn) AS lsn FROM t WHERE {span} AND lsn IS NOT NULL "
                        "GROUP BY incarnation ORDER BY incarnation DESC LIMIT 1",
        )
        return (places[0]["incarnation"], places[0]["lsn"]) if places else (0, None), time["at"]
