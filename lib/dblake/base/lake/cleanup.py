"""Delta logs of our tables, kept short, so that opening a table costs the same however many commits it has had.

Opening a table lists its log: with 100,000 entries that takes many times as long as with 1,000. Delta removes entries
by age alone, and only some writers do it. ``clean_log`` writes a checkpoint when one is due and removes the entries
before the newest checkpoint that is old enough. Which versions readers may still need is the caller's decision.
"""

from __future__ import annotations

import json
import re
import time

from pyarrow import fs

from dblake.base.lake.files import filesystem
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.tables import open_table

_CHECKPOINT_COMMITS = 100
_KEPT_COMMITS = 1000
"""So many of the newest commits stay, however old: readers under way continue from the version they have."""
_ENTRY = re.compile(r"(\d{20})\.(?:json|crc|checkpoint(?:\.[^/]*)?\.parquet|(\d{20})\.compacted\.json)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


def clean_log(path: str, *, keep_hours: float, keep_from: int | None = None) -> int:
    """Write a checkpoint of a table if one is due and remove old entries of its log; return how many were removed.

    All versions of the last ``keep_hours`` stay readable, and all from version ``keep_from`` on. Only entries before a
    checkpoint go, and the newest 1,000 commits stay.
    """
    system, folder = _log_folder(path)
    newest = open_table(path).version()
    if newest - max(_checkpoints(system, folder), default=0) >= _CHECKPOINT_COMMITS:
        with commit_lock(path):
            open_table(path).create_checkpoint()
    limit = newest - _KEPT_COMMITS if keep_from is None else min(newest - _KEPT_COMMITS, keep_from)
    before = (time.time() - 3600 * keep_hours) * 1000
    old = [
        version for version in sorted(_checkpoints(system, folder), reverse=True)
        if version <= limit and _committed_at(system, folder, version) <= before
    ]
    return _remove_before(system, folder, old[0]) if old else 0


def _log_folder(path: str) -> tuple[fs.FileSystem, str]:
    system, base = filesystem(path)
    return system, f"{base.rstrip('/')}/_delta_log"


def _names(system: fs.FileSystem, folder: str) -> list[str]:
    return [entry.base_name for entry in system.get_file_info(fs.FileSelector(folder))]


def _checkpoints(system: fs.FileSystem, folder: str) -> list[int]:
    return [int(match[1]) for name in _names(system, folder) if (match := _CHECKPOINT.fullmatch(name))]


def _committed_at(system: fs.FileSystem, folder: str, version: int) -> float:
    """When a version was committed, in milliseconds; infinity if its entry is gone or has no time."""
    try:
        with system.open_input_stream(f"{folder}/{version:020}.json") as entry:
            lines = entry.read().decode().splitlines()
    except FileNotFoundError:
        return float("inf")
    for line in lines:
        if "commitInfo" in (action := json.loads(line)):
            return float(action["commitInfo"].get("timestamp", "inf"))
    return float("inf")


def _remove_before(system: fs.FileSystem, folder: str, version: int) -> int:
    removed = 0
    # Oldest first: a run that ends here leaves a log without gaps.
    for name in sorted(_names(system, folder)):
        match = _ENTRY.fullmatch(name)
        if match and int(match[2] or match[1]) < version:
            system.delete_file(f"{folder}/{name}")
            removed += 1
    return removed
