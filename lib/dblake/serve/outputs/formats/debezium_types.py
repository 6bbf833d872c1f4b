"""Debezium's column types: a source's text as JSON, and its Kafka Connect schema.

Place: below ``debezium``. It equals the mapping of Debezium's connectors for PostgreSQL and MySQL with their default
settings (``time.precision.mode: adaptive``, ``decimal.handling.mode: precise``, ``binary.handling.mode: bytes``).
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
https://debezium.io/documentation/reference/stable/connectors/mysql.html#mysql-data-types
``bigint unsigned`` is a Decimal, as with ``bigint.unsigned.handling.mode: precise``: Connect has no type for it. A
source type without a row is a string. A text that its type cannot hold (``infinity``, a zero date) is the caller's to
reject.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

Json = Any
UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium writes for a text that the log did not carry; for bytes it writes these characters."""
_UNAVAILABLE_BYTES = base64.b64encode(UNAVAILABLE.encode()).decode()

_UNBOUNDED = (1 << 31) - 1
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1), date(1970, 1, 1).toordinal()
_TIME = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_INTERVAL = re.compile(r"(-?\d+) (year|mon|day)s?")
# Debezium's constant for the days of a month: 365.25 / 12.
_MONTH_MICROSECONDS = int(365.25 / 12 * 86_400_000_000)
# PostgreSQL's numeric has up to 131,072 digits before the point and 16,383 after it.
_EXACT = Context(prec=150_000)


#: By logical name, else by type: the fallbacks of Debezium's JdbcValueConverters.
_FALLBACKS: dict[str, Json] = {
    "int16": 0, "int32": 0, "int64": 0, "float": 0.0, "double": 0.0, "boolean": False, "string": "", "bytes": "",
    "struct": {"scale": 0, "value": "AA=="}, "org.apache.kafka.connect.data.Decimal": "AA==",
    "io.debezium.time.ZonedTimestamp": "1970-01-01T00:00:00Z", "io.debezium.time.ZonedTime": "00:00:00Z",
    "io.debezium.data.Json": "{}",
}


@dataclass(frozen=True, slots=True)
class ConnectType:
    """A column's Connect type, the logical name with its version and parameters, and what makes its JSON of a text."""

    type: str
    read: Callable[[str], Json]
    name: str = ""
    version: int = 1
    parameters: dict[str, str] = field(default_factory=dict)
    fields: tuple[dict[str, Json], ...] = ()
    doc: str = ""

    def schema(self, *, optional: bool, field_name: str) -> dict[str, Json]:
        """Return the schema of a field, as Connect's JsonConverter writes it."""
        out: dict[str, Json] = {"type": self.type, "optional": optional}
        if self.name:
            out |= {"name": self.name, "version": self.version}
        if self.parameters:
            out["parameters"] = self.parameters
        if self.fields:
            out["fields"] = list(self.fields)
        if self.doc:
            out["doc"] = self.doc
        return {**out, "field": field_name}

    @property
    def fallback(self) -> Json:
        """What Debezium writes for a column that may not be NULL where the log has no value."""
        return _FALLBACKS.get(self.name, _FALLBACKS[self.type])

    @property
    def placeholder(self) -> str | None:
        """What Debezium writes for a value that the log did not carry; None for types that it has none for."""
        if self.type == "string" and self.name in ("", "io.debezium.data.Json", "io.debezium.data.Xml"):
            return UNAVAILABLE
        return _UNAVAILABLE_BYTES if self.type == "bytes" and not self.name else None


def _float(text: str) -> Json:
    number = float(text)
    # JSON has no NaN; JsonConverter writes the same words.
    return number if math.isfinite(number) else text


def _boolean(text: str) -> Json:
    return {"t": True, "f": False}[text]


def encode_unscaled(value: Decimal, scale: int) -> str:
    """Return a decimal as Connect's logical type: the unscaled integer, two's complement, big-endian, in base64."""
    unscaled = int(value.scaleb(scale, _EXACT))
    length = (unscaled.bit_length() if unscaled >= 0 else (unscaled + 1).bit_length()) // 8 + 1
    return base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode()


def _decimal(scale: int) -> ConnectType:
    def read(text: str) -> Json:
        return encode_unscaled(Decimal(text), scale)

    return ConnectType("bytes", read, "org.apache.kafka.connect.data.Decimal", 1, {"scale": str(scale)})


def _variable_decimal(text: str) -> Json:
    """Return a decimal with its scale, as Debezium without zeros at the end."""
    number = Decimal(text).normalize(_EXACT)
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError
    scale = max(-exponent, 0)
    return {"scale": scale, "value": encode_unscaled(number, scale)}


def _money(text: str) -> Json:
    return encode_unscaled(Decimal(text.replace("$", "").replace(",", "")), 2)


def _days(text: str) -> Json:
    return date.fromisoformat(text).toordinal() - _EPOCH_DAY


def _microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def _milliseconds(text: str) -> int:
    return _microseconds(text) // 1000


def _zoned(digits: int) -> ConnectType:
    """Return the type of instants in ISO 8601 with Z, with as many digits of the second as the column has."""
    def read(text: str) -> Json:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        fraction = f".{at.microsecond:06d}"[:digits + 1] if digits else ""
        return at.strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"

    return ConnectType("string", read, "io.debezium.time.ZonedTimestamp")


def _time(text: str) -> int:
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError
    sign, hours, minutes, seconds, fraction = match.groups()
    total = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -total if sign else total


def _interval(text: str) -> int:
    total, rest = 0, text
    units = {"year": 12 * _MONTH_MICROSECONDS, "mon": _MONTH_MICROSECONDS, "day": 86_400_000_000}
    for match in _INTERVAL.finditer(text):
        total += int(match[1]) * units[match[2]]
        rest = rest.replace(match[0], "", 1)
    return total + (_time(rest.strip().removeprefix("+")) if rest.strip() else 0)


def _zoned_time(text: str) -> Json:
    match = re.fullmatch(r"(.*?)([+-])(\d\d)(?::(\d\d))?", text)
    if not match:
        raise ValueError
    at = _time(match[1]) - (1 if match[2] == "+" else -1) * (int(match[3]) * 60 + int(match[4] or 0)) * 60_000_000
    seconds, fraction = divmod(at % 86_400_000_000, 1_000_000)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{digits}Z"


def _bytes(text: str) -> Json:
    if not text.startswith("\\x"):
        raise ValueError
    return base64.b64encode(bytes.fromhex(text[2:])).decode()


def _bits(size: int) -> ConnectType:
    if size == 1:
        return ConnectType("boolean", lambda text: text == "1")

    def read(text: str) -> Json:
        return base64.b64encode(int(text or "0", 2).to_bytes((len(text) + 7) // 8, "little")).decode()

    return ConnectType("bytes", read, "io.debezium.data.Bits", 1, {"length": str(size)})


def _text(name: str = "", **parameters: str) -> ConnectType:
    return ConnectType("string", str, name, 1, parameters)


def _integer(kind: str) -> ConnectType:
    return ConnectType(kind, int)


_VARIABLE = ConnectType(
    "struct", _variable_decimal, "io.debezium.data.VariableScaleDecimal", 1,
    fields=({"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"}),
    doc="Variable scaled decimal",
)
_SHARED: dict[str, ConnectType] = {
    "tinyint": _integer("int16"), "tinyint unsigned": _integer("int16"), "smallint": _integer("int16"),
    "smallint unsigned": _integer("int32"), "mediumint": _integer("int32"), "mediumint unsigned": _integer("int32"),
    "integer": _integer("int32"), "int": _integer("int32"), "int unsigned": _integer("int64"),
    "bigint": _integer("int64"), "oid": _integer("int64"),
    "real": ConnectType("float", _float), "float": ConnectType("float", _float),
    "double precision": ConnectType("double", _float), "double": ConnectType("double", _float),
    "boolean": ConnectType("boolean", _boolean), "numeric": _VARIABLE,
    "money": ConnectType("bytes", _money, "org.apache.kafka.connect.data.Decimal", 1, {"scale": "2"}),
    "date": ConnectType("int32", _days, "io.debezium.time.Date"),
    "year": ConnectType("int32", int, "io.debezium.time.Year"),
    "uuid": _text("io.debezium.data.Uuid"), "json": _text("io.debezium.data.Json"),
    "jsonb": _text("io.debezium.data.Json"), "xml": _text("io.debezium.data.Xml"),
    "interval": ConnectType("int64", _interval, "io.debezium.time.MicroDuration"),
}
_MILLISECONDS = ConnectType("int64", _milliseconds, "io.debezium.time.Timestamp")
_MICROSECONDS = ConnectType("int64", _microseconds, "io.debezium.time.MicroTimestamp")
_TIME_OF_DAY = ConnectType("int64", _time, "io.debezium.time.MicroTime")
_TIME_MILLISECONDS = ConnectType("int32", lambda text: _time(text) // 1000, "io.debezium.time.Time")
_OLD = r"(?: /\* mariadb-5\.3 \*/)?"


@lru_cache(maxsize=4096)
def connect_type(source_type: str) -> ConnectType:
    """Return the Connect type of a source type; text for one that Debezium has no type of its own for."""
    if source_type in _SHARED:
        return _SHARED[source_type]
    if source_type == "bigint unsigned":
        return _decimal(0)
    if match := re.fullmatch(r"(?:numeric|decimal)\((\d+),(-?\d+)\)", source_type):
        made = _decimal(int(match[2]))
        made.parameters["connect.decimal.precision"] = match[1]
        return made
    if match := re.fullmatch(rf"(timestamp|datetime)(?:\((\d)\))?( without time zone)?{_OLD}", source_type):
        if match[1] == "timestamp" and not match[3]:
            return _zoned(int(match[2] or 0))
        digits = int(match[2]) if match[2] else 6 if match[3] else 0
        return _MILLISECONDS if digits <= 3 else _MICROSECONDS
    if match := re.fullmatch(r"timestamp(?:\((\d)\))? with time zone", source_type):
        return _zoned(int(match[1] or 6))
    if match := re.fullmatch(rf"time(?:\((\d)\))?( without time zone)?{_OLD}", source_type):
        return _TIME_MILLISECONDS if match[2] and match[1] and int(match[1]) <= 3 else _TIME_OF_DAY
    if re.fullmatch(r"time(\(\d\))? with time zone", source_type):
        return ConnectType("string", _zoned_time, "io.debezium.time.ZonedTime")
    if match := re.fullmatch(r"bit(?: varying)?(?:\((\d+)\))?", source_type):
        return _bits(int(match[1] or _UNBOUNDED))
    if re.fullmatch(r"bytea|(?:var)?binary\(\d+\)|(?:tiny|medium|long)?blob", source_type):
        return ConnectType("bytes", _bytes)
    if match := re.fullmatch(r"(enum|set)\((.*)\)(?: character set \w+)?", source_type):
        labels = ",".join(label.replace("''", "'") for label in re.findall(r"'((?:[^']|'')*)'", match[2]))
        return _text(f"io.debezium.data.Enum{'Set' if match[1] == 'set' else ''}", allowed=labels)
    return _text()


def read_value(source_type: str, text: str) -> Json:
    """Return a value as JSON. Raises ValueError for a text that its type cannot hold."""
    try:
        return connect_type(source_type).read(text)
    except (ArithmeticError, KeyError) as error:
        raise ValueError from error
