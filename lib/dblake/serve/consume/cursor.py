"""How far a subscription is, as a value that is stored as text.

Place: below ``stream``, which advances cursors, and ``checkpoints``, which store them. Guarantee: a cursor alone, with
the lake, determines what follows: the next transaction, or the next rows of a bootstrap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dblake.base.core.errors import ConfigError
from dblake.base.core.position import Position

BEGINNING = Position(1, 0, 0)
_VERSION, _VERSION_WITH_SPANS = 1, 2
"""An earlier version takes consolidated changes for a bootstrap, and so must reject a checkpoint that has some."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A bootstrap under way at a frontier: state as of ``position`` and landing ``batch``, read at ``versions``.

    All rows of tables before ``table``, in order of names, are delivered, and ``rows`` rows of that one. ``id``
    identifies the bootstrap. With ``since``, only keys count that changed after it, in batches after ``since_batch``:
    consolidated changes, which have no ``id``.
    """

    position: Position
    batch: int
    versions: Mapping[str, int]
    table: str = ""
    rows: int = 0
    id: str = ""
    since: Position | None = None
    since_batch: int = 0


@dataclass(slots=True)
class Cursor:
    """Never changed once made, though not frozen: one is made for each transaction, which would take twice as long.

    Everything up to ``position`` is delivered, and everything of landing batches up to ``batch``.

    ``position`` lies in the batch ``reached`` or before it: a consumer may stop between two transactions of a batch.
    ``run`` is the redecode run that events came from; ``schemas`` the schema id last announced, by table. ``newest`` is
    at or after every event of the batches up to ``batch``, delivered or not; None if it is not known.
    """

    position: Position
    batch: int
    run: int = 0
    schemas: Mapping[str, str] = field(default_factory=dict)
    bootstrap: Bootstrap | None = None
    reached: int = 0
    newest: Position | None = None

    @property
    def oldest_needed(self) -> int:
        """The landing batch after which events are still read."""
        one = self.bootstrap
        return self.batch if one is None or one.since is None else one.since_batch

    def has_events_since(self, batch: int) -> bool:
        """Return whether events of this landing batch, or of a later one, may have been delivered."""
        return batch <= max(self.batch, self.reached)


def write_checkpoint(cursors: Mapping[str, Cursor], selection: str) -> str:
    """Return cursors by source as text; ``selection`` identifies the filter that they belong to."""
    has_span = any(one.bootstrap is not None and one.bootstrap.since is not None for one in cursors.values())
    document = {"version": _VERSION_WITH_SPANS if has_span else _VERSION, "filter": selection, "sources": {
        name: _as_json(cursor) for name, cursor in cursors.items()
    }}
    return json.dumps(document, separators=(",", ":"))


def parse_checkpoint(text: str, selection: str, where: str) -> dict[str, Cursor]:
    """Parse the text that ``write_checkpoint`` returns; ``where`` names its place for messages.

    Raises ConfigError if it is damaged, or was made with another filter: tables or keys would be missing silently.
    """
    known, cursors = _parse(text, where)
    if known != selection:
        raise ConfigError(
            f"the checkpoint in {where} belongs to other tables, columns or another partition",
            next_step="begin with --from bootstrap, or with a point if earlier rows are not needed; in a group, with "
                      "another `group.url`",
        )
    return cursors


def read_cursor(text: str, source: str, where: str) -> Cursor | None:
    """Return one source's cursor in a checkpoint, whatever its filter; None if it has none.

    For those who report how far a consumer is. Raises ConfigError if the text is damaged.
    """
    return _parse(text, where)[1].get(source)


def _parse(text: str, where: str) -> tuple[str, dict[str, Cursor]]:
    """Return a checkpoint's filter and cursors."""
    try:
        document = json.loads(text)
        version, known = document["version"], document["filter"]
        cursors = {name: _from_json(entry) for name, entry in document["sources"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"the checkpoint in {where} cannot be parsed", next_step="restore it, or delete it to begin again"
        ) from None
    if version not in (_VERSION, _VERSION_WITH_SPANS):
        raise ConfigError(
            f"the checkpoint in {where} has the unknown version {version}", next_step="run the dblake that wrote it"
        )
    return known, cursors


def _as_json(cursor: Cursor) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "position": str(cursor.position), "batch": cursor.batch, "reached": cursor.reached, "run": cursor.run,
        "schemas": dict(cursor.schemas), "newest": cursor.newest and str(cursor.newest),
    }
    if cursor.bootstrap is not None:
        one = cursor.bootstrap
        entry["bootstrap"] = {
            "position": str(one.position), "batch": one.batch, "versions": dict(one.versions), "table": one.table,
            "rows": one.rows, "id": one.id,
        }
        if one.since is not None:
            entry["bootstrap"] |= {"since": str(one.since), "since_batch": one.since_batch}
    return entry


def _from_json(entry: Mapping[str, Any]) -> Cursor:
    one = entry.get("bootstrap")
    bootstrap = None if one is None else Bootstrap(
        Position.parse(one["position"]), int(one["batch"]), {str(t): int(v) for t, v in one["versions"].items()},
        str(one["table"]), int(one["rows"]), str(one.get("id", "")),
        Position.parse(one["since"]) if "since" in one else None, int(one.get("since_batch", 0)),
    )
    schemas = {str(table): str(schema_id) for table, schema_id in entry["schemas"].items()}
    batch = int(entry["batch"])
    return Cursor(
        Position.parse(entry["position"]), batch, int(entry["run"]), schemas, bootstrap,
        int(entry.get("reached", batch + 1)), Position.parse(entry["newest"]) if entry.get("newest") else None,
    )
