r"""The native format: one JSON object per event, and control entries.

Integers, floating point numbers and booleans are JSON values, everything else is the source's canonical text, binary
values ``\x`` and hex digits. A column that is absent was not sent, null is NULL. ``key_before`` is absent unless the
key changed. NaN and infinities, which JSON lacks, are texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from dblake.base.core.schema import TableSchema
from dblake.serve.consume.model import Control, Event, Image
from dblake.serve.consume.values import json_kinds


class NativeFormat:
    """The format ``native``: see ``protocol.Format``."""

    def encode(self, event: Event) -> bytes:
        """Return the event as one line of JSON without its end."""
        return _dumps(event_document(event)).encode()

    def encode_key(self, event: Event) -> bytes | None:
        """Return the key as a JSON object."""
        if event.key is None:
            return None
        return _dumps(json_image(event.key, event.schema)).encode()

    def encode_control(self, control: Control) -> bytes:
        """Return a control entry as one line of JSON without its end."""
        return _dumps(control_document(control)).encode()


def event_document(event: Event) -> dict[str, Any]:
    """Return an event as an object of the native format."""
    schema = event.schema
    return {
        "source": event.source, "table": event.table, "op": event.op, "position": str(event.position),
        "key": json_image(event.key, schema),
        **({} if event.key_before is None else {"key_before": json_image(event.key_before, schema)}),
        "before": json_image(event.before, schema),
        "after": json_image(event.after, schema), "txid": event.txid, "committed_at": _format_time(event.committed_at),
        "last_in_transaction": event.last_in_transaction, "origin": event.origin, "schema_id": event.schema_id,
    }


def control_document(control: Control) -> dict[str, Any]:
    """Return a control entry as an object of the native format."""
    document: dict[str, Any] = {
        "control": str(control.kind), "source": control.source, "position": str(control.position)
    }
    if control.table is not None:
        document["table"] = control.table
    return document | dict(control.details)


def json_image(image: Image | None, schema: TableSchema) -> dict[str, Any] | None:
    """Return an image with JSON values."""
    if image is None:
        return None
    readers = _readers(schema)
    return {
        name: text if text is None or name not in readers else readers[name](text) for name, text in image.items()
    }


@lru_cache(maxsize=4096)
def _readers(schema: TableSchema) -> Mapping[str, Callable[[str], object]]:
    return {name: _READERS[kind] for name, kind in json_kinds(schema).items()}


def _integer(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        return text


def _float(text: str) -> object:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _boolean(text: str) -> object:
    return {"t": True, "f": False}.get(text, text)


_READERS: Mapping[str, Callable[[str], object]] = {"integer": _integer, "float": _float, "boolean": _boolean}
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@lru_cache(maxsize=256)
def _format_time(at: datetime | None) -> str | None:
    """Return a time as ``2026-11-22T12:00:00.123456Z``."""
    if at is None:
        return None
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
