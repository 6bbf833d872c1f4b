"""Wire ``verify``: queue a verification in the configured progress store, and carry it through."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dblake.capture.dump_queue import queue_verification
from dblake.config import Config
from dblake.core.errors import Unsupported
from dblake.lake.layout import Paths
from dblake.mask.rules import rules_of
from pipelines.dump import open_store, read_captured, resolve_tables

_POLL_SECONDS = 0.5
_REPORT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued verification: by table the columns of its key, None if some are masked; and tables without a key."""

    id: str
    tables: Mapping[str, int | None]
    skipped: tuple[str, ...] = ()


def queue_tables(config: Config, tables: Sequence[str], *, sample: float | None) -> Queued:
    """Queue a verification of the named tables, or of all with a primary key.

    Raises Unsupported for a named table that is not captured or has no primary key, and if no table has one.
    """
    captured = read_captured(config)
    names = resolve_tables(captured, tables) if tables else tuple(t for t in captured if captured[t].primary_key)
    if not names:
        raise Unsupported(
            f"source {config.source.name}: none of {len(captured)} captured tables has a primary key, so none can be "
            "verified",
            next_step="correct source.tables, or add primary keys",
        )
    share = config.verify.sample if sample is None else sample
    verification_id = queue_verification(open_store(config), names, sample=share)
    keys = {name: captured[name].primary_key for name in names}
    masked = {name for name in names if rules_of(config.mask.tables, name).keys() & set(keys[name])}
    skipped = () if tables else tuple(name for name in captured if name not in names)
    return Queued(verification_id, {n: None if n in masked else len(key) for n, key in keys.items()}, skipped)


def wait_for(
    config: Config, queued: Queued, *, repair: bool, show: Callable[[str], None]
) -> tuple[list[dict[str, Any]], int]:
    """Compare until all tables are verified; return one result per table, and how many rows differ still."""
    from dblake.verification.requests import Verification

    paths = Paths(config.warehouse, config.source.name)
    verification = Verification(paths, open_store(config), queued.id, queued.tables, repair)
    shown, shown_at = "", time.monotonic()
    while not verification.advance():
        waiting = verification.describe_waiting()
        if waiting != shown and time.monotonic() - shown_at > _REPORT_SECONDS:
            shown, shown_at = waiting, time.monotonic()
            show(waiting)
        time.sleep(_POLL_SECONDS)
    return verification.results(), verification.remaining()
