"""Parse the keys of ``dump start --keys``.

Guarantee: a parsed key has one text per key column, in the form the database compares. No message quotes a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from dblake.base.core.errors import UsageError
from dblake.base.core.schema import TableSchema
from dblake.ingest.capture.dump_task import Key

_FORMS = (
    (re.compile(r"(tiny|small|medium|big)?int(eger)?\b", re.IGNORECASE), re.compile(r"[-+]?\d+")),
    (re.compile(r"uuid$", re.IGNORECASE), re.compile(r"\{?([0-9a-f]{4}-?){8}\}?", re.IGNORECASE)),
    (re.compile(r"date$", re.IGNORECASE), re.compile(r"\d{1,6}-\d\d-\d\d( BC)?|-?infinity")),
)
"""Types, and what their values look like."""


def parse_keys(text: str, columns: Sequence[str]) -> list[Key]:
    """Return the keys of a JSON array: one entry per key, a value or an array with one value per key column.

    Raises UsageError if ``text`` is not such an array.

    >>> parse_keys('[1, 2]', ["id"])
    [('1',), ('2',)]
    >>> parse_keys('[["a", 1.50]]', ["region", "price"])
    [('a', '1.50')]
    """
    shape = f"one entry per key: a value, or an array of {len(columns)} ({', '.join(columns)})"
    try:
        # Numbers stay text: 1.50 and 1.5 may be two keys.
        entries = json.loads(text, parse_float=str, parse_constant=str)
    except ValueError as error:
        raise UsageError("--keys is not JSON", next_step=f"give an array with {shape}") from error
    if not isinstance(entries, list) or not entries:
        raise UsageError("--keys is not an array of keys", next_step=f"give an array with {shape}")
    keys = [tuple(entry) if isinstance(entry, list) else (entry,) for entry in entries]
    for number, key in enumerate(keys, start=1):
        if len(key) != len(columns):
            raise UsageError(
                f"--keys: entry {number} has {len(key)} values, the key has {len(columns)} columns",
                next_step=f"give {shape}",
            )
        if any(value is None or isinstance(value, (list, dict)) for value in key):
            raise UsageError(
                f"--keys: entry {number} has a null, an array or an object as a value", next_step=f"give {shape}"
            )
    return [tuple(_text(value) for value in key) for key in keys]


def require_typed(keys: Sequence[Key], schema: TableSchema) -> None:
    """Raise UsageError for a key with a value that its column cannot hold; types other than the plainest are passed."""
    types = {column.name: column.type for column in schema.columns}
    for number, key in enumerate(keys, start=1):
        for name, value in zip(schema.primary_key, key, strict=True):
            form = next((form for kind, form in _FORMS if kind.match(types[name])), None)
            if form is not None and not form.fullmatch(value):
                raise UsageError(
                    f"--keys: entry {number} is no value of column {name}, which is {types[name]}",
                    next_step="give keys as the table has them",
                )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
