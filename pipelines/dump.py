"""What the ``dump`` job does: asks for dumps, steers them and tells how they stand.

It only writes requests; capture carries them out. Only ``start`` talks to the database, to refuse by name what could
not be dumped.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dblake.capture import dump_queue
from dblake.capture.dump_task import Control, DumpState, Key
from dblake.capture.progress import ProgressStore, open_progress
from dblake.capture.stale_tables import set_dump
from dblake.capture.throttle import Throttle, read_throttle, set_throttle
from dblake.config import Config
from dblake.core.errors import ConfigError, PrerequisitesNotMet, Unsupported, UsageError
from dblake.core.names import qualified, split_qualified
from dblake.core.schema import TableSchema
from dblake.mask.rules import key_is_masked, rules_of

_LOOK_SECONDS = 0.5
_KEYS_FIRST = 10
"""The priority of given keys: they are few, and somebody waits for them."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Queued:
    """What was asked for, and the tables that were left out because they have no primary key."""

    id: str
    tables: tuple[str, ...]
    skipped: tuple[str, ...] = ()


def start_all(config: Config, *, priority: int | None = None) -> Queued:
    """Queues all captured tables that have a primary key."""
    found = _captured(config)
    able = tuple(name for name, schema in found.items() if schema.primary_key)
    if not able:
        raise Unsupported(
            f"source {config.source.name}: no captured table has a primary key, so none can be dumped",
            next_step="correct source.tables, or add primary keys",
        )
    skipped = tuple(name for name in found if name not in able)
    return Queued(_queue(config, able, None, priority or 0), able, skipped)


def start_tables(
    config: Config, tables: Sequence[str], keys: Sequence[str], *, priority: int | None = None
) -> Queued:
    """Queues the tables named, or of one of them the rows whose keys are given as JSON, which come first."""
    found = _captured(config)
    names = tuple(dict.fromkeys(_known(found, table) for table in tables))
    keyless = [name for name in names if not found[name].primary_key]
    if keyless:
        raise Unsupported(
            f"table {', '.join(keyless)} has no primary key, so it cannot be dumped",
            next_step="add a primary key; its changes are followed from the log meanwhile",
        )
    wanted: list[Key] | None = None
    if keys:
        if len(names) != 1:
            raise UsageError("--keys are keys of one table", next_step="give --table once")
        columns = found[names[0]].primary_key
        if rules_of(config.mask.tables, names[0]).keys() & set(columns):
            raise key_is_masked(names[0])
        wanted = [key for text in keys for key in parse_keys(text, columns)]
    if priority is None:
        priority = _KEYS_FIRST if wanted else 0
    return Queued(_queue(config, names, wanted, priority), names)


def _queue(config: Config, tables: Sequence[str], keys: Sequence[Key] | None, priority: int) -> str:
    store = _store(config)
    dump_id = dump_queue.queue_dump(store, tables, keys, priority=priority)
    if keys is None:
        set_dump(store, tables, dump_id)
    return dump_id


def parse_keys(text: str, columns: Sequence[str]) -> list[Key]:
    """Keys as JSON: an array with one entry a key, the value itself or an array with a value for each column.

    >>> parse_keys('[1, 2]', ["id"])
    [('1',), ('2',)]
    >>> parse_keys('[["a", 1.50]]', ["region", "price"])
    [('a', '1.50')]
    """
    shape = f"one entry a key: a value, or an array of {len(columns)} ({', '.join(columns)})"
    try:
        # As text, because 1.50 and 1.5 may be two keys.
        given = json.loads(text, parse_float=str, parse_constant=str)
    except ValueError as error:
        raise UsageError("--keys is not JSON", next_step=f"give an array with {shape}") from error
    if not isinstance(given, list) or not given:
        raise UsageError("--keys is not an array of keys", next_step=f"give an array with {shape}")
    keys = [tuple(key) if isinstance(key, list) else (key,) for key in given]
    for number, key in enumerate(keys, start=1):
        if len(key) != len(columns):
            wrong = f"--keys: entry {number} has {len(key)} values, not {len(columns)}"
            raise UsageError(wrong, next_step=f"give {shape}")
        if any(value is None or isinstance(value, (list, dict)) for value in key):
            raise UsageError(f"--keys: entry {number} holds what no key can hold", next_step=f"give {shape}")
    return [tuple(_text(value) for value in key) for key in keys]


def steer(config: Config, control: Control, dump_id: str | None, table: str | None) -> list[Entry]:
    """Pauses, resumes or cancels: one dump or all, of one table or all. Returns what it applies to, as it stands."""
    store = _store(config)
    entries = dump_queue.dump_status(store)
    if dump_id is not None and all(entry["id"] != dump_id for entry in entries):
        raise ConfigError(f"there is no dump {dump_id}", next_step="dump status lists the dumps there are")
    name = None if table is None else _canonical(table)
    if name is not None and all(entry["table"] != name for entry in entries):
        raise ConfigError(f"there is no dump of table {name}", next_step="dump status lists the dumps there are")
    applies = [
        request for request in dump_queue.read_requests(store)
        if dump_id in (None, request.id) and name in (None, request.table) and request.control is not Control.CANCEL
    ]
    for request in applies:
        dump_queue.set_control(store, request, control)
    chosen = {(request.id, request.table) for request in applies}
    return [entry for entry in dump_queue.dump_status(store) if (entry["id"], entry["table"]) in chosen]


def slow_down(config: Config, given: Throttle) -> Throttle:
    """Sets what is given and keeps the rest; heeded from the next chunk on. Returns all that holds then."""
    store = _store(config)
    said = {name: value for name, value in asdict(given).items() if value is not None}
    wanted = replace(read_throttle(store), **said)
    set_throttle(store, wanted)
    configured = config.dump.model_dump(include=set(asdict(wanted)))
    return Throttle(**configured | {name: value for name, value in asdict(wanted).items() if value is not None})


def end_throttle(config: Config) -> None:
    """Back to the configuration's chunk size and delay."""
    set_throttle(_store(config), Throttle())


def dump_status(config: Config) -> list[Entry]:
    """Every dump, one entry a table."""
    return dump_queue.dump_status(_store(config))


def wait_for(config: Config, dump_id: str, show: Callable[[list[Entry]], None]) -> None:
    """Looks until all tables of a dump are finished. Raises PrerequisitesNotMet if some were not dumped."""
    store = _store(config)
    while True:
        entries = [entry for entry in dump_queue.dump_status(store) if entry["id"] == dump_id]
        show(entries)
        if all(DumpState(entry["state"]).is_final for entry in entries):
            break
        time.sleep(_LOOK_SECONDS)
    undone = [f"{entry['table']} {entry['state']}" for entry in entries if entry["state"] != DumpState.DONE]
    if undone:
        raise PrerequisitesNotMet(f"dump {dump_id}: {', '.join(undone)}", next_step="dump status says why")


def _store(config: Config) -> ProgressStore:
    return open_progress(config.progress, config.source.name)


def _captured(config: Config) -> dict[str, TableSchema]:
    # Here, because database and Arrow libraries take longer to load than the other subcommands take to run.
    from pipelines.sources import open_source

    return {schema.table: schema for schema in open_source(config).tables()}


def _known(found: dict[str, TableSchema], table: str) -> str:
    name = _canonical(table)
    if name in found:
        return name
    near = difflib.get_close_matches(name, found, n=3)
    raise Unsupported(
        f"table {table} is not captured",
        next_step=f"did you mean {' or '.join(near)}?" if near else "write schema.table, as source.tables has it",
    )


def _canonical(table: str) -> str:
    try:
        return qualified(*split_qualified(table))
    except ValueError:
        return table


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
