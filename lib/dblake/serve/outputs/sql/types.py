"""Map source types to the column types of SQL targets, and values to what a target's driver accepts.

Place: below ``postgres`` and ``mysql``, the two targets. The mapping is data: the first row of ``SQL_TYPES`` whose
pattern matches the whole type name applies, and a type without a row becomes text, which holds every value. Guarantee:
no value is rounded, cut or shifted; ``values`` rejects by name what a target's type cannot hold.
``tools.types_reference`` generates the table in ``docs/outputs.md`` from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_MYSQL_TEXT = "longtext"
_INDEX_CHARACTERS, _INDEX_BYTES = 768, 3072
"""The longest InnoDB key: 3,072 bytes, four for each character."""
_MAX_INLINE_CHARACTERS = 255
_OLD = r"(?: /\* mariadb-5\.3 \*/)?"
_CHARSET = r"(?: character set \w+)?"


@dataclass(frozen=True, slots=True)
class SqlType:
    """One row of the mapping: the types of a PostgreSQL and of a MySQL or MariaDB target.

    ``pattern`` matches source types; its groups fill ``{0}``, ``{1}``. ``shown`` lists the names for readers.
    """

    pattern: str
    shown: str
    postgres: str
    mysql: str


SQL_TYPES = (
    SqlType("tinyint|smallint|tinyint unsigned|year", "tinyint, tinyint unsigned, smallint, year", "smallint",
            "smallint"),
    SqlType("integer|int|mediumint|mediumint unsigned|smallint unsigned",
            "integer, int, mediumint, mediumint unsigned, smallint unsigned", "integer", "int"),
    SqlType("bigint|int unsigned", "bigint, int unsigned", "bigint", "bigint"),
    SqlType("bigint unsigned", "bigint unsigned", "numeric(20,0)", "bigint unsigned"),
    SqlType("real|float", "real, float", "real", "float"),
    SqlType("double precision|double", "double precision, double", "double precision", "double"),
    SqlType("boolean", "boolean", "boolean", "tinyint(1)"),
    SqlType(r"(?:numeric|decimal)\((\d+),(\d+)\)", "numeric(p,s), decimal(p,s)", "numeric({0},{1})",
            "decimal({0},{1})"),
    SqlType(r"numeric(?:\((\d+),(-\d+)\))?", "numeric, numeric(p,-s)", "numeric", _MYSQL_TEXT),
    SqlType("date", "date", "date", "date"),
    SqlType(r"timestamp(\(\d\))? without time zone", "timestamp without time zone", "timestamp{0}", "datetime{0:6}"),
    SqlType(r"timestamp(\(\d\))? with time zone", "timestamp with time zone", "timestamptz{0}", "datetime{0:6}"),
    SqlType(rf"datetime(\(\d\))?{_OLD}", "datetime", "timestamp{0:0}", "datetime{0}"),
    SqlType(rf"timestamp(\(\d\))?{_OLD}", "timestamp (MySQL)", "timestamptz{0:0}", "datetime{0}"),
    SqlType(r"time(\(\d\))? without time zone", "time without time zone", "time{0}", "varchar(15)"),
    SqlType(rf"time(\(\d\))?{_OLD}", "time (MySQL)", "interval{0:0}", "time{0}"),
    SqlType(r"time(\(\d\))? with time zone", "time with time zone", "timetz{0}", "varchar(32)"),
    SqlType(r"interval[^\[\]]*", "interval", "interval", _MYSQL_TEXT),
    SqlType("uuid", "uuid", "uuid", "char(36)"),
    SqlType(r"(?:inet|cidr)", "inet, cidr", "{type}", "varchar(64)"),
    SqlType("json", "json", "json", "json"),
    SqlType("jsonb", "jsonb", "jsonb", _MYSQL_TEXT),
    SqlType(r"bit\((\d+)\)", "bit(n)", "bit({0})", "bit({0})"),
    SqlType(r"bit varying\((\d+)\)", "bit varying(n)", "bit varying({0})", "varchar({0})"),
    SqlType(r"bytea|(?:var)?binary\(\d+\)|(?:tiny|medium|long)?blob",
            "bytea, binary(n), varbinary(n), tinyblob, blob, mediumblob, longblob", "bytea", "longblob"),
    SqlType(r"character varying\((\d+)\)|varchar\((\d+)\) character set \w+|char\((\d+)\) character set \w+",
            "character varying(n), varchar(n), char(n)", "varchar({0})", "varchar({0})"),
    SqlType(r"character\((\d+)\)", "character(n)", "character({0})", "varchar({0})"),
    SqlType(rf"(?:enum|set)\(.*\){_CHARSET}", "enum, set", "text", _MYSQL_TEXT),
    # PostgreSQL's own, built in: the same type there.
    SqlType(
        r"(?:smallint|integer|bigint|real|double precision|boolean|text|uuid|date|numeric(?:\(\d+,\d+\))?|bytea|jsonb?"
        r"|interval|inet|cidr|character varying(?:\(\d+\))?|timestamp(?:\(\d\))? with(?:out)? time zone)\[\]"
        r"|macaddr8?|money|oid|tsvector|tsquery|int4range|int8range|numrange|tsrange|tstzrange|daterange"
        r"|point|line|lseg|box|path|polygon|circle|pg_lsn|xid8|bit varying",
        "arrays of the types above, ranges, tsvector, tsquery, macaddr, money, oid, point, line, lseg, box, path, "
        "polygon, circle", "{type}", _MYSQL_TEXT),
)

#: Source types whose events hold ``\\x`` and hexadecimal digits.
_BINARY = re.compile(r"bytea|(?:var)?binary\(\d+\)|(?:tiny|medium|long)?blob")


@lru_cache(maxsize=4096)
def postgres_type(source_type: str) -> str:
    """Return PostgreSQL's type for a source type."""
    return _mapped(source_type, "postgres") or "text"


@lru_cache(maxsize=4096)
def mysql_type(source_type: str, key_columns: int = 0) -> str:
    """Return MySQL's and MariaDB's type for a source type.

    ``key_columns`` is the number of columns in the primary key if this one belongs to it, else 0: indexes need types of
    limited length, and their columns share InnoDB's limit.
    """
    mapped = _mapped(source_type, "mysql") or _MYSQL_TEXT
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", mapped)
    if decimal and (int(decimal[1]) > 65 or int(decimal[2]) > min(30, int(decimal[1]))):
        # PostgreSQL's go further, and MariaDB's to a scale of 38.
        mapped = _MYSQL_TEXT
    bits = re.fullmatch(r"bit\((\d+)\)", mapped)
    if bits and int(bits[1]) > 64:
        mapped = _MYSQL_TEXT
    length = re.fullmatch(r"varchar\((\d+)\)", mapped)
    if key_columns:
        if mapped == "longblob":
            return f"varbinary({_INDEX_BYTES // key_columns})"
        if mapped in (_MYSQL_TEXT, "json"):
            return f"varchar({_INDEX_CHARACTERS // key_columns})"
        return f"varchar({min(int(length[1]), _INDEX_CHARACTERS // key_columns)})" if length else mapped
    # Longer ones count fully against the 65,535 bytes of a row.
    return _MYSQL_TEXT if length and int(length[1]) > _MAX_INLINE_CHARACTERS else mapped


def is_binary(source_type: str) -> bool:
    """Return whether events hold a type's values as hexadecimal digits."""
    return _BINARY.fullmatch(source_type) is not None


def is_text(sql_type: str) -> bool:
    """Return whether a target's type has characters, so that it needs a character set."""
    return sql_type.startswith(("varchar", "char(", "character", "text", _MYSQL_TEXT))


def widens(old: str, new: str) -> bool:
    """Return whether every value of the target type ``old`` is one of ``new``, written the same."""
    old, new = _canonical(old), _canonical(new)
    if old == new or new in ("text", _MYSQL_TEXT):
        return True
    ranks = ("tinyint(1)", "smallint", "int", "bigint")
    if old in ranks and new in ranks:
        return ranks.index(old) <= ranks.index(new)
    if (old, new) in (("float", "double"), ("real", "double precision")):
        return True
    narrow, wide = _sizes(old), _sizes(new)
    if not narrow or not wide:
        return _is_integer_in(old, wide)
    if narrow[0] == wide[0] == "decimal":
        return wide[2] >= narrow[2] and wide[1] - wide[2] >= narrow[1] - narrow[2]
    return narrow[0] == wide[0] and narrow[0].startswith(("var", "timestamp", "datetime")) and wide[1] >= narrow[1]


def _is_integer_in(old: str, wide: tuple[str, int, int] | None) -> bool:
    digits = {"smallint": 5, "int": 10, "bigint": 19, "bigint unsigned": 20}
    return bool(wide) and wide[0] == "decimal" and wide[1] - wide[2] >= digits.get(old, 99)  # type: ignore[index]


def _canonical(sql_type: str) -> str:
    return re.sub(r"^numeric\b", "decimal", re.sub(r"^integer$", "int", sql_type))


def _sizes(sql_type: str) -> tuple[str, int, int] | None:
    match = re.fullmatch(r"([a-z ]+)\((\d+)(?:,(\d+))?\)", sql_type)
    return (match[1], int(match[2]), int(match[3] or 0)) if match else None


def _mapped(source_type: str, target: str) -> str | None:
    for row in SQL_TYPES:
        match = re.fullmatch(row.pattern, source_type)
        if match:
            template: str = getattr(row, target)
            groups = [group for group in match.groups() if group is not None]
            return _filled(template, groups, source_type)
    return None


def _filled(template: str, groups: list[str], source_type: str) -> str:
    """Fill a template; ``{0:6}`` has ``(6)`` where the source type has no precision of its own."""
    out = template.replace("{type}", source_type)
    default = re.search(r"\{0:(\d)\}", out)
    if default:
        out = out.replace(default[0], groups[0] if groups else f"({default[1]})")
    out = out.replace("{0}", groups[0] if groups else "")
    return out.replace("{1}", groups[1] if len(groups) > 1 else "")
