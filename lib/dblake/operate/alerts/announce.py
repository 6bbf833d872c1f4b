"""Announce problems: each once when it begins, and once when it ends.

Place: behind ``status``, whose document has the open problems; ``hooks`` delivers. Guarantee: a call is recorded in
``progress`` after its success, so a call that fails is repeated the next time, with what is open then. Hooks are
independent: each has its own record. A problem is one code of one table or output; its detail may change. One that many
tables have is one problem, so calls and record are bounded, however many tables a database has. It ends when the last
of these tables is well; that they become more or fewer ends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dblake.base.core.errors import DblakeError
from dblake.base.core.names import abbreviated
from dblake.ingest.capture.progress import ProgressStore
from dblake.operate.alerts.hooks import Hook
from dblake.serve.outputs.activity import now_text

_DOCUMENT = "alerts"
_SHOWN_IN_TEXT = 10
_TABLES_APART = 50
"""With more tables than that, a code is one problem."""
_RECORDED = ("code", "table", "output", "since")
"""What the record keeps of a problem: details may be long, and ``progress`` may be in ZooKeeper."""
_APART = "is_apart"
"""Of the record of a group: its tables are few, and recorded each on its own."""

logger = logging.getLogger(__name__)


def announce(
    source: str, problems: Iterable[Mapping[str, Any]], hooks: Sequence[Hook], store: ProgressStore
) -> list[DblakeError]:
    """Call each hook if problems began or ended since its last success; return the errors of hooks that failed.

    ``problems`` come from the document of ``status``. Raises ProgressUnavailable if ``store`` cannot be read.
    """
    now = now_text()
    recorded = store.read(_DOCUMENT) or {}
    open_now = {_identity(one): dict(one) for one in _grouped(problems)}
    errors = list[DblakeError]()
    for hook in hooks:
        before: dict[str, Any] = recorded.get(hook.name, {})
        announced = _regrouped(before, open_now)
        if announced != before:
            recorded[hook.name] = announced
            store.write(_DOCUMENT, recorded)
        begun = [one | {"since": now} for identity, one in open_now.items() if identity not in announced]
        over = {identity: one for identity, one in announced.items() if not _is_open(identity, one, open_now)}
        ended = [_entry(one) | {"ended_at": now} for one in over.values()]
        if not begun and not ended:
            continue
        try:
            hook.call({
                "source": source, "at": now, "text": _summarize(source, begun, ended), "begun": begun, "ended": ended,
            })
        except DblakeError as error:
            logger.warning("%s", error)
            errors.append(error)
            continue
        began = {_identity(one): _entry(one) for one in begun}
        recorded[hook.name] = {key: one for key, one in announced.items() if key not in over} | began
        store.write(_DOCUMENT, recorded)
    return errors


def _entry(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one[key] for key in _RECORDED if key in one}


def _regrouped(announced: Mapping[str, Any], open_now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is announced, with the tables of a group once they are few enough to be problems of their own.

    The group announced them; a table that follows later is announced alone.
    """
    result = dict(announced)
    for code, group in announced.items():
        if code != group["code"]:
            continue
        apart = {key: one for key, one in open_now.items() if one["code"] == code and one.get("table")}
        if apart and not group.get(_APART):
            result = {key: _entry(one) | {"since": group["since"]} for key, one in apart.items()} | result
        result[code] = _entry(group) | ({_APART: True} if apart else {})
    return result


def _is_open(identity: str, one: Mapping[str, Any], open_now: Mapping[str, Any]) -> bool:
    """Return True if a problem is open: itself, as one of a group, or as a group that still has tables."""
    if identity in open_now or (one.get("table") and one["code"] in open_now):
        return True
    tables_of = {other["code"] for other in open_now.values() if other.get("table")}
    return identity == one["code"] and identity in tables_of


def _grouped(problems: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the problems; a code that many tables have is one problem."""
    by_code: dict[str, list[Mapping[str, Any]]] = {}
    for one in problems:
        by_code.setdefault(str(one["code"]), []).append(one)
    for alike in by_code.values():
        tables = [str(one["table"]) for one in alike if one.get("table")]
        if len(tables) <= _TABLES_APART:
            yield from alike
            continue
        yield {**alike[0], "table": None, "detail": f"{len(tables)} tables: {abbreviated(tables)}"}
        yield from (one for one in alike if not one.get("table"))


def _identity(problem: Mapping[str, Any]) -> str:
    return " ".join(str(problem[key]) for key in ("code", "table", "output") if problem.get(key))


def _summarize(source: str, begun: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]]) -> str:
    """Return a text for people: chat services show a field of this name."""
    lines = [f"{source}: problems that began: {len(begun)}, ended: {len(ended)}"]
    lines += [f"began: {_identity(one)}: {one['detail']}. Next: {one['next']}" for one in begun[:_SHOWN_IN_TEXT]]
    lines += [f"ended: {_identity(one)}" for one in ended[:_SHOWN_IN_TEXT]]
    more = max(len(begun) - _SHOWN_IN_TEXT, 0) + max(len(ended) - _SHOWN_IN_TEXT, 0)
    return "\n".join([*lines, *([f"and {more} more"] if more else [])])
