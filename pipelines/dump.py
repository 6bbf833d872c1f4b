"""Wire ``dump``: queue, steer and list dump requests in the configured progress store.

Capture carries the requests out. Only ``start`` connects to the database, to reject tables that cannot be dumped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dblake.base.core.errors import ConfigError, Unsupported, UsageError
from dblake.base.core.mask_rules import key_is_masked, rules_of
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.ingest.capture import dump_queue
from dblake.ingest.capture.dump_keys import parse_keys, require_typed
from dblake.ingest.capture.dump_task import DumpControl, Key
from dblake.ingest.capture.progress import ProgressStore, open_progress
from dblake.ingest.capture.selection import canonical_name, resolve_tables
from dblake.ingest.capture.stale_tables import set_dump
from dblake.ingest.capture.throttle import Throttle, read_throttle
from dblake.ingest.capture.throttle import set_throttle as save_throttle
from dblake.ingest.imports.spec import ImportFiles

_KEYS_PRIORITY = 10
"""Given keys are few rows that a user waits for."""

Entry = dict[str, Any]
"""One table of one dump, as ``dump status --json`` prints it."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued dump, and the tables that it leaves out because they have no primary key."""

    id: str
    tables: tuple[str, ...]
    skipped: tuple[str, ...] = ()


def start_all(config: Config, *, priority: int | None = None, removes: bool = False) -> Queued:
    """Queue a dump of all captured tables with a primary key. Raises Unsupported if there is none.

    With ``removes`` its ends delete however many rows it does not return, otherwise at most ``dump.max_removed``.
    """
    captured = read_captured(config)
    keyed = tuple(name for name, schema in captured.items() if schema.primary_key)
    if not keyed:
        raise Unsupported(
            f"source {config.source.name}: none of {len(captured)} captured tables has a primary key, so none can be "
            "dumped",
            next_step="correct source.tables, or add primary keys",
        )
    skipped = tuple(name for name in captured if name not in keyed)
    return Queued(_queue(config, keyed, None, priority or 0, removes=removes), keyed, skipped)


def start_tables(
    config: Config, tables: Sequence[str], keys: Sequence[str], *, priority: int | None = None, removes: bool = False
) -> Queued:
    """Queue a dump of the named tables, or of the rows of one table whose keys are given as JSON.

    Given keys get priority 10 by default, whole tables 0; ``removes`` is that of ``start_all``. Raises Unsupported for
    a table that is not captured or has no primary key.
    """
    captured = read_captured(config)
    names = resolve_tables(captured, tables)
    requested: list[Key] | None = None
    if keys:
        if len(names) != 1:
            raise UsageError(f"--keys needs exactly one table, not {len(names)}", next_step="give --table once")
        columns = captured[names[0]].primary_key
        if rules_of(config.mask.tables, names[0]).keys() & set(columns):
            raise key_is_masked(names[0])
        requested = [key for text in keys for key in parse_keys(text, columns)]
        require_typed(requested, captured[names[0]])
    if priority is None:
        priority = _KEYS_PRIORITY if requested else 0
    return Queued(_queue(config, names, requested, priority, removes=removes), names)


def start_import(
    config: Config, table: str, files: ImportFiles, *, replaces: bool = False, removes: bool = False
) -> tuple[Queued, int | None]:
    """Queue the import of a table's rows from files; return also their number, if the files record it."""
    # Imported here as below: it loads Arrow.
    from dblake.ingest.capture.import_request import ImportQueue

    captured, paths = read_captured(config), Paths(config.warehouse, config.source.name)
    (name,) = resolve_tables(captured, [table])
    limit = None if removes else config.dump.max_removed
    queue = ImportQueue(config.source.type, paths.landing, open_store(config), limit, config.maintain.landing_days)
    is_masked = bool(rules_of(config.mask.tables, name))
    dump_id, rows = queue.add(files, captured[name], is_masked=is_masked, replaces=replaces)
    return Queued(dump_id, (name,)), rows


def steer(config: Config, control: DumpControl, dump_id: str | None, table: str | None) -> list[Entry]:
    """Pause, resume or cancel unfinished dumps and return them; None selects every dump or every table.

    To cancel also dismisses failed dumps that are named. A verification is selected by its id only. Raises ConfigError
    if there is no such dump or no dump of such a table.
    """
    store = open_store(config)
    entries = _read_entries(store, dump_id)
    if dump_id is not None and all(entry["id"] != dump_id for entry in entries):
        raise ConfigError(f"there is no dump {dump_id}", next_step="list the dumps with dump status")
    name = None if table is None else canonical_name(table)
    if name is not None and all(entry["table"] != name for entry in entries):
        raise ConfigError(f"there is no dump of table {name}", next_step="list the dumps with dump status")
    selected = [
        request for request in dump_queue.read_requests(store) if (dump_id or not request.verify)
        and dump_id in (None, request.id) and name in (None, request.table)
        and request.control is not DumpControl.CANCEL
    ]
    for request in selected:
        dump_queue.set_control(store, request, control)
    ids = {(request.id, request.table) for request in selected}
    if control is DumpControl.CANCEL and (dump_id or name):
        ids |= dump_queue.dismiss_failed(store, dump_id, name)
    return [entry for entry in _read_entries(store, dump_id) if (entry["id"], entry["table"]) in ids]


def _read_entries(store: ProgressStore, dump_id: str | None) -> list[Entry]:
    verifications = dump_queue.dump_status(store, verifications=True) if dump_id else []
    return dump_queue.dump_status(store) + verifications


def set_throttle(config: Config, changes: Throttle) -> Throttle:
    """Set the given limits, leave the others, and return the limits in force from the next chunk on."""
    store = open_store(config)
    throttle = replace(read_throttle(store), **_given(asdict(changes)))
    save_throttle(store, throttle)
    return _limits(config, throttle)


def reset_throttle(config: Config) -> Throttle:
    """Return to the configuration's limits, and return them."""
    save_throttle(open_store(config), Throttle())
    return _limits(config, Throttle())


def _limits(config: Config, throttle: Throttle) -> Throttle:
    configured = config.dump.model_dump(include=set(asdict(throttle)))
    return Throttle(**configured | _given(asdict(throttle)))


def read_dumps(config: Config) -> list[Entry]:
    """Return every dump, one entry per table."""
    return dump_queue.dump_status(open_store(config))


def estimate_rows(config: Config, queued: Queued) -> int | None:
    """Return about how many rows the tables of a dump have; None if the database does not know."""
    from pipelines.sources import open_source

    estimates = open_source(config).row_estimates(queued.tables)
    known = [rows for table in queued.tables if (rows := estimates.get(table)) is not None]
    return sum(known) if known and len(known) == len(queued.tables) else None


def _queue(
    config: Config, tables: Sequence[str], keys: Sequence[Key] | None, priority: int, *, removes: bool
) -> str:
    store, limit = open_store(config), None if removes else config.dump.max_removed
    dump_id = dump_queue.queue_dump(store, tables, keys, priority=priority, max_removed=limit)
    if keys is None:
        set_dump(store, tables, dump_id)
    return dump_id


def open_store(config: Config) -> ProgressStore:
    """Open the configured progress store."""
    return open_progress(config.progress, config.source.name)


def read_captured(config: Config) -> dict[str, TableSchema]:
    """Return the schemas of all captured tables, by name."""
    # Imported here: database drivers and Arrow take longer to load than the other subcommands take to run.
    from pipelines.sources import open_source

    return {schema.table: schema for schema in open_source(config).tables()}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
