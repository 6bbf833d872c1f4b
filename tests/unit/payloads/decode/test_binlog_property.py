"""Random tables and rows: what was encoded comes back, and mysql-replication's decoder reads the same values."""

from __future__ import annotations

import random
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from dblake.base.core.errors import ReconcileError
from dblake.base.core.schema import Column, TableSchema
from dblake.payloads.decode.batch import decode
from tests.support.binlog_encode import DELETE, UPDATE, WRITE, result_row, rows_event
from tests.support.effort import seeds
from tests.support.mysql_replication import their_rows, their_table
from tests.unit.payloads.decode.landing_rows import batch_of, chunk_row, events_of, log_row

LETTERS = "abc é€ß"
VERSION_1 = 7  # less than version 2's event numbers
WIDTHS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}


def number(draw: random.Random, bits: int, unsigned: bool) -> str:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return str(draw.choice([low, high, 0, 1, draw.randint(low, high)]))


def any_type(draw: random.Random) -> str:
    precision = draw.randint(1, 65)
    most = draw.choice([1, 20, 63, 64, 255, 256, 2000])
    charset = draw.choice(["utf8mb4", "latin1", "utf8mb3"])
    labels = ",".join(f"'l{n}'" for n in range(draw.choice([1, 8, 9, 33, 64])))
    size = draw.choice(["tiny", "", "medium", "long"])
    fraction = draw.choice(["", *(f"({f})" for f in range(1, 7))])
    return draw.choice([
        *WIDTHS, *(f"{name} unsigned" for name in WIDTHS), "float", "double", "year", "date", f"datetime{fraction}",
        f"timestamp{fraction}", f"time{fraction}", f"decimal({precision},{draw.randint(0, min(precision, 30))})",
        f"bit({draw.randint(1, 64)})", f"char({min(most, 255)}) character set {charset}",
        f"varchar({most}) character set {charset}", f"{size}text character set {charset}",
        f"{size}blob", f"binary({min(most, 255)})", f"varbinary({most})",
        f"enum({labels}) character set latin1", f"set({labels}) character set latin1",
    ])


def any_value(draw: random.Random, spelling: str) -> str:
    name, _, rest = spelling.partition("(")
    size = int(rest.split(")")[0].split(",")[0]) if rest and name not in ("enum", "set") else 0
    integer = name.removesuffix(" unsigned")
    if integer in WIDTHS:
        return number(draw, WIDTHS[integer], name != integer)
    if name == "decimal":
        scale = int(rest.split(",")[1][:-1])
        digits = "".join(draw.choice("0000123456789") for _ in range(size)) if draw.random() < 0.9 else "9" * size
        whole, part = digits[: size - scale].lstrip("0") or "0", digits[size - scale :]
        text = whole + ("." + part if scale else "")
        return "-" + text if draw.random() < 0.5 and set(text) - set("0.") else text
    if name in ("float", "double"):
        return any_float(draw, name)
    if name == "bit":
        return "".join(draw.choice("01") for _ in range(size))
    if name == "year":
        return str(draw.choice([1901, 2155, draw.randint(1901, 2155)]))
    if name in ("date", "datetime", "timestamp", "time"):
        return any_moment(draw, name, size)
    if name in ("enum", "set"):
        return any_label(draw, name, spelling)
    long = draw.randint(0, min(size, 300) if size else 80)
    if "character set" not in spelling:
        data = draw.randbytes(size if name == "binary" else long)
        return "\\x" + data.hex()
    text = "".join(draw.choice(LETTERS) for _ in range(long))
    return text.rstrip() if name == "char" else text


def any_float(draw: random.Random, name: str) -> str:
    far = draw.uniform(-1, 1) * 10.0 ** draw.randint(-30, 30)
    return repr(as_stored(name, draw.choice([0.0, 1.0, -0.5, draw.uniform(-1000, 1000), far])))


def as_stored(name: str, value: float) -> float:
    """Return the value as a column of the type stores it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0]) if name == "float" else value


def any_moment(draw: random.Random, name: str, fraction: int) -> str:
    tail = "." + "".join(draw.choice("0123456789") for _ in range(fraction)) if fraction else ""
    clock = f"{draw.randint(0, 59):02d}:{draw.randint(0, 59):02d}{tail}"
    if name == "time":
        return draw.choice(["", "-"]) + f"{draw.choice([1, 99, 100, 837]):02d}:{clock}"
    years = (1971, 2037) if name == "timestamp" else (1, 9999)
    day = date(draw.randint(*years), 1, 1) + timedelta(draw.randint(0, 364))
    return day.isoformat() if name == "date" else f"{day.isoformat()} {draw.randint(0, 23):02d}:{clock}"


def any_label(draw: random.Random, name: str, spelling: str) -> str:
    labels = [label.strip("'") for label in spelling.split("(", maxsplit=2)[1].split(")", maxsplit=1)[0].split(",")]
    if name == "enum":
        return draw.choice(["", *labels])
    return ",".join(label for label in labels if draw.random() < draw.choice([0.05, 0.9]))


def any_table(draw: random.Random) -> TableSchema:
    columns = [Column(f"c{n}", any_type(draw)) for n in range(draw.randint(0, 20))]
    columns.insert(draw.randint(0, len(columns)), Column("id", "int", False, 1))
    return TableSchema("shop.orders", tuple(columns))


def canonical(spelling: str, text: str | None) -> str | None:
    """Floats are spelled by Arrow, so they are compared as numbers."""
    return repr(as_stored(spelling, float(text))) if text is not None and spelling in ("float", "double") else text


def texts(schema: TableSchema, image: list[tuple[str, str | None]] | None) -> dict[str, str | None] | None:
    types = {c.name: c.type for c in schema.columns}
    return None if image is None else {name: canonical(types[name], text) for name, text in image}


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_binlog_rows_random_round_trip(seed: int) -> None:
    draw = random.Random(seed)
    schema = any_table(draw)
    types = [c.type for c in schema.columns]

    log, before, after, chunk = [], [], [], []
    for lsn in range(draw.randint(1, 30)):
        kind = draw.choice([WRITE, UPDATE, DELETE])
        olds = [any_row(draw, schema) for _ in range(draw.randint(1, 12))]
        news = [changed(draw, schema, row) for row in olds] if kind == UPDATE else olds
        images = [image for pair in zip(olds, news, strict=True) for image in pair] if kind == UPDATE else olds
        event = rows_event(kind - draw.choice([0, VERSION_1]), types, images)
        log.append(log_row(schema, event, format="binlog_rows", lsn=lsn))
        before += [None if kind == WRITE else list(zip(schema.names, row, strict=True)) for row in olds]
        after += [None if kind == DELETE else list(zip(schema.names, row, strict=True)) for row in news]
        chunk += [result_row([printed(t, v) for t, v in zip(types, row, strict=True)]) for row in news]
    events = events_of(decode(batch_of(*log), {schema.schema_id: schema}))
    assert [texts(schema, e["before"]) for e in events] == [texts(schema, row) for row in before]
    assert [texts(schema, e["after"]) for e in events] == [texts(schema, row) for row in after]
    rows = [chunk_row(schema, row, format="mysql_rows", seq=2 * at) for at, row in enumerate(chunk)]
    read = events_of(decode(batch_of(*rows), {schema.schema_id: schema}))
    assert [e["after"] for e, row in zip(read, after, strict=True) if row] == [e["after"] for e in events if e["after"]]


def any_row(draw: random.Random, schema: TableSchema) -> list[str | None]:
    return [None if c.nullable and draw.random() < 0.2 else any_value(draw, c.type) for c in schema.columns]


def changed(draw: random.Random, schema: TableSchema, row: list[str | None]) -> list[str | None]:
    """Return the row after an update that keeps its key and most columns."""
    return [value if c.key or draw.random() < 0.7 else None if draw.random() < 0.3 else any_value(draw, c.type)
            for c, value in zip(schema.columns, row, strict=True)]


def printed(spelling: str, text: str | None) -> bytes | None:
    """Return the bytes that a result row has for a value."""
    if text is None:
        return None
    if spelling.startswith("bit("):
        return int(text, 2).to_bytes((len(text) + 7) // 8, "big")
    if "blob" in spelling or "binary" in spelling:
        return bytes.fromhex(text[2:])
    return text.encode("cp1252" if spelling.endswith("latin1") else "utf-8")


@pytest.mark.parametrize("seed", seeds(8, 17))
def test_binlog_rows_equal_mysql_replication(seed: int) -> None:
    draw = random.Random(1000 + seed)
    schema = any_table(draw)
    types = [c.type for c in schema.columns]
    event = rows_event(WRITE, types, [any_row(draw, schema) for _ in range(60)])
    events = events_of(decode(batch_of(log_row(schema, event, format="binlog_rows")), {schema.schema_id: schema}))
    their = their_rows(event, their_table(schema))
    assert len(events) == len(their) == 60
    for row, other in zip(events, their, strict=True):
        for (name, text), spelling in zip(row["after"], types, strict=True):
            # The library's fractions of times below zero are off.
            if not (spelling.startswith("time(") and text and text.startswith("-")):
                assert value_of(spelling, text) == seen(spelling, other["values"][name]), spelling


def value_of(spelling: str, text: str | None) -> Any:
    """Our text as the library's kind of value."""
    name = spelling.partition("(")[0].split(" ")[0]
    if text is None:
        return None
    if name in WIDTHS or name == "year":
        return int(text)
    if name == "decimal":
        return Decimal(text)
    if name in ("float", "double"):
        return as_stored(name, float(text))
    if name == "date":
        return date.fromisoformat(text)
    if name in ("datetime", "timestamp"):
        return datetime.strptime(text.partition(".")[0], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) + fraction_of(text)
    if name == "time":
        hours, minutes, seconds = map(int, text.partition(".")[0].removeprefix("-").split(":"))
        size = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return -size if text.startswith("-") else size + fraction_of(text)
    if name == "set":
        return set(text.split(",")) if text else None
    if name == "binary":
        return bytes.fromhex(text[2:]).rstrip(b"\0")
    return bytes.fromhex(text[2:]) if "blob" in name or name == "varbinary" else text


def fraction_of(text: str) -> timedelta:
    return timedelta(microseconds=int(text.partition(".")[2].ljust(6, "0")))


def seen(spelling: str, value: Any) -> Any:
    """Return the library's value in a comparable form."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    if isinstance(value, str) and "character set" not in spelling and not spelling.startswith("bit("):
        return value.encode("latin1")
    return value


def dented(draw: random.Random, payload: bytes) -> bytes:
    """Return the bytes with some of them changed, or cut."""
    out = bytearray(payload)
    for _ in range(draw.randint(1, 4)):
        out[draw.randrange(len(out))] = draw.choice([0, 1, 0x7F, 0x80, 0xFB, 0xFE, 0xFF, draw.randrange(256)])
    return bytes(out[: draw.choice([len(out), draw.randrange(1, len(out) + 1)])])


@pytest.mark.parametrize("seed", range(8))
def test_binlog_rows_malformed_rejected_or_decoded(seed: int) -> None:
    draw = random.Random(2000 + seed)
    table = any_table(draw)
    types = [c.type for c in table.columns]
    json = ("\\x0003004d0019000000190001001a000200071c000220000501006162627011010005002d000501000b13000c1b00040000001d"
            "0000000000000004400178010010000b000100020c006300000400")
    more = (Column("j", "json"), Column("u", "uuid"), Column("i", "inet6"))
    schema = TableSchema("shop.orders", (*table.columns, *more))
    refused = read = 0
    for _ in range(40):
        rows = [[*any_row(draw, table), json, "\\x1234", "\\x"] for _ in range(3)]
        event = rows_event(WRITE, [*types, "json", "tinyblob", "tinyblob"], rows)
        line = result_row([*(printed(t, v) for t, v in zip(types, rows[0], strict=False)), b"{}", b"u", b"i"])
        for row in (log_row(schema, dented(draw, event), format="binlog_rows"),
                    chunk_row(schema, dented(draw, line), format="mysql_rows")):
            try:
                events_of(decode(batch_of(row), {schema.schema_id: schema}))
                read += 1
            except ReconcileError as error:
                assert "shop.orders" in str(error)
                refused += 1
    assert refused > 10
    assert read > 0
