"""Wire ``verify``: queue a verification in the configured progress store."""

from __future__ import annotations

from collections.abc import Sequence

from dblake.base.core.errors import Unsupported, UsageError
from dblake.base.core.mask_rules import rules_of
from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.ingest.capture.dump_queue import queue_verification
from dblake.ingest.capture.selection import resolve_tables
from dblake.ingest.capture.table_life import LifeState, read_lives
from dblake.operate.verification.outputs import OutputVerification
from dblake.operate.verification.requests import Verification
from dblake.serve.outputs.target import make_outputs
from pipelines.dump import open_store, read_captured


def output_verification(config: Config, name: str, tables: Sequence[str]) -> OutputVerification:
    """Return the verification of an output's target. Raises UsageError if there is no such output."""
    targets = make_outputs(config.outputs)
    if name not in targets:
        raise UsageError(f"there is no output {name}", next_step=f"use one of {', '.join(targets) or 'none'}")
    return OutputVerification(Paths(config.warehouse, config.source.name), name, targets[name], tables)


def queue_tables(
    config: Config, tables: Sequence[str], *, sample: float | None, repair: bool, max_removed: float | None = None
) -> tuple[Verification, dict[str, str]]:
    """Queue a verification of the named tables, or of all that can be read; return also why others are skipped.

    Raises Unsupported for a named table that is not captured or has no primary key, and if no table has one.
    """
    captured, store = read_captured(config), open_store(config)
    lives = read_lives(store)
    skipped = {} if tables else {t: "has no primary key" for t in captured if not captured[t].primary_key} | {
        t: f"is suspended: {lives[t].reason}" for t in captured
        if t in lives and lives[t].state is LifeState.SUSPENDED
    }
    names = resolve_tables(captured, tables) if tables else tuple(t for t in captured if t not in skipped)
    if not names:
        raise Unsupported(
            f"source {config.source.name}: none of {len(captured)} captured tables has a primary key and is not "
            "suspended, so none can be verified",
            next_step="correct source.tables, add primary keys, or run preflight if tables are suspended",
        )
    share = config.verify.sample if sample is None else sample
    queued = queue_verification(store, names, sample=share)
    keys = {name: captured[name].primary_key for name in names}
    masked = {name for name in names if rules_of(config.mask.tables, name).keys() & set(keys[name])}
    columns = {name: None if name in masked else len(key) for name, key in keys.items()}
    paths = Paths(config.warehouse, config.source.name)
    return Verification(paths, store, queued, columns, repair, share, max_removed), skipped
