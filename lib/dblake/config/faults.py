"""What is wrong with a value of the configuration file, in words for its author, with an example.

Place: below ``load``, which names file, line and key. pydantic's own messages speak of Python's types and of regular
expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dblake.config.airflow import SCHEDULE
from dblake.config.iceberg import NAMESPACE
from dblake.config.monitoring import AGE
from dblake.config.outputs import WEB_ADDRESS
from dblake.config.source import SERVER_ADDRESS, SLOT_NAME, SOURCE_NAME
from dblake.config.stages import SIZE

PATTERNS: Mapping[str, str] = {
    SOURCE_NAME: "a name of at most 40 of a-z, 0-9, _ and -, which begins with a letter or digit, such as shop",
    SERVER_ADDRESS: "HOST or HOST:PORT, such as replica.internal:5432",
    SLOT_NAME: "1 to 63 of a-z, 0-9 and _, such as dblake_shop",
    SIZE: "a number and k, m or g, such as 256m",
    NAMESPACE: "a name of a-z, 0-9 and _, which begins with a letter, such as shop",
    AGE: "a number and s, m, h or d, such as 24h",
    SCHEDULE: 'cron, such as "*/15 * * * *", or @hourly, @daily, @continuous',
    WEB_ADDRESS: "an address that begins with http:// or https://",
}
"""What a value has to be that must match a pattern."""

_Limits = Mapping[str, Any]
_KINDS: dict[str, Callable[[_Limits], str]] = {
    "string_type": lambda _: 'text, such as "5432"',
    "int_type": lambda _: "a whole number without quotes, such as 5432",
    "int_from_float": lambda _: "a whole number, such as 5432",
    "float_type": lambda _: "a number without quotes, such as 0.5",
    "bool_type": lambda _: "true or false",
    "tuple_type": lambda _: "a list, such as [a, b]",
    "list_type": lambda _: "a list, such as [a, b]",
    "dict_type": lambda _: "keys with values, such as {a: b}",
    "model_type": lambda _: "a section: keys with values",
    "model_attributes_type": lambda _: "a section: keys with values",
    "literal_error": lambda limits: str(limits["expected"]).replace("'", ""),
    "greater_than": lambda limits: f"more than {limits['gt']:g}",
    "greater_than_equal": lambda limits: f"at least {limits['ge']:g}",
    "less_than": lambda limits: f"less than {limits['lt']:g}",
    "less_than_equal": lambda limits: f"at most {limits['le']:g}",
    "string_too_short": lambda _: "text that is not empty",
    "too_short": lambda limits: f"a list of at least {limits['min_length']}",
    "string_pattern_mismatch": lambda limits: PATTERNS[limits["pattern"]],
}


def describe_value(error: Mapping[str, Any]) -> str:
    """Return what a value has to be, for one of pydantic's errors; a message of our own validators as it is."""
    kind = _KINDS.get(error["type"])
    if kind is None:
        return str(error["msg"]).removeprefix("Value error, ")
    return f"must be {kind(error.get('ctx', {}))}"
