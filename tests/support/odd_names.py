"""Table and column names that a component on the path could misinterpret.

Each table of ``TABLES`` has the columns ``id`` and ``v``. Two wide tables have the odd columns: all of them, and those
that Parquet accepts unescaped. The SQL is valid on every database; only the quotes around names differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dblake.base.core.names import qualified


@dataclass(frozen=True, slots=True)
class OddName:
    """A table, its folder under ``state``, and its SQL name (schema, view); None if another table has the same one."""

    schema: str
    table: str
    folder: str
    view: tuple[str, str] | None

    @property
    def qualified(self) -> str:
        """Return the qualified name, as ``table`` columns contain it."""
        return qualified(self.schema, self.table)


LONG = "é" * 31
TABLES = (
    OddName("public", "orders", "public/orders", None),
    OddName("public", "Orders", "public/~4frders", None),
    OddName("Public", "orders", "~50ublic/orders", None),
    OddName("public", 'say "hi"', "public/say~20~22hi~22", ("public", "say__hi_")),
    OddName("public", "x'; DROP TABLE orders--", "public/x~27~3b~20~44~52~4f~50~20~54~41~42~4c~45~20orders--",
            ("public", "x___DROP_TABLE_orders__")),
    OddName("a.b", "c", "a~2eb/c", ("a_b", "c")),
    OddName("a", "b.c", "a/b~2ec", ("a", "b_c")),
    OddName("public", "a/b", "public/a~2fb", ("public", "a_b")),
    OddName("..", "..", "~2e~2e/~2e~2e", ("__", "__")),
    OddName("public", "../../../escape", "public/~2e~2e~2f~2e~2e~2f~2e~2e~2fescape", ("public", "_" * 9 + "escape")),
    OddName("public", "back\\slash\\", "public/back~5cslash~5c", ("public", "back_slash_")),
    OddName("public", "tick`tock", "public/tick~60tock", ("public", "tick_tock")),
    OddName("public", "new\nline\t.", "public/new~0aline~09~2e", ("public", "new_line__")),
    OddName("select", "from", "select/from", ("select", "from")),
    OddName("public", "null", "public/null", ("public", "null")),
    OddName("public", "_delta_log", "public/~5fdelta_log", ("public", "_delta_log")),
    OddName("_delta_log", "_delta_log", "~5fdelta_log/~5fdelta_log", ("_delta_log", "_delta_log")),
    OddName("public", "-dash", "public/~2ddash", ("public", "_dash")),
    OddName("public", "a*", "public/a~2a", ("public", "a_")),
    OddName("public", "[a-z]?{x}", "public/~5ba-z~5d~3f~7bx~7d", ("public", "_a_z___x_")),
    OddName("public", "%2e%2e", "public/~252e~252e", ("public", "_2e_2e")),
    OddName("public", "100%s %(x)s", "public/100~25s~20~25~28x~29s", ("public", "100_s___x_s")),
    OddName("public", "~41", "public/~7e41", ("public", "_41")),
    OddName("public", "${env:HOME}", "public/~24~7benv~3a~48~4f~4d~45~7d", ("public", "__env_HOME_")),
    OddName("public", "größe", "public/gr~c3~b6~c3~9fe", ("public", "gr__e")),
    OddName("public", " a", "public/~20a", ("public", "_a")),
    OddName("public", "1st", "public/1st", ("public", "1st")),
    # 63 bytes, whose folders would be 187 characters.
    OddName("public", LONG + "x", "public/" + "~c3~a9" * 16 + "~c3~~~691b8b47f1a492cf", ("public", "_" * 31 + "x")),
    OddName("public", LONG + "y", "public/" + "~c3~a9" * 16 + "~c3~~~66f372fc6728af62", ("public", "_" * 31 + "y")),
    OddName("public", "x" * 63, "public/" + "x" * 63, ("public", "x" * 63)),
    OddName("dblake-2", "events", "dblake-2/events", ("dblake_2", "events")),
)
#: MySQL names cannot contain characters beyond U+FFFF.
BEYOND = OddName("public", "😀", "public/~f0~9f~98~80", ("public", "_"))

COLUMNS = (
    "a.b", "a b", "a`b", "a,b", "a;b", "a{b}", "a(b)", "a=b", "a\nb", "a\tb", "a/b", "a:b", "a-b", 'say "hi"', "it's",
    "back\\slash\\", "\\'", "select", "NULL", "_leading", "1st", "..", ".", "`", "'", '"', "\\", "*", "%", "%s",
    "%(x)s", "${env:HOME}", "{}", "count(*)", "x'; DROP TABLE orders--", "größe", LONG, "x" * 63,
    # Names that dblake's own tables and the SQL of state use.
    "batch", "op", "key", "after", "before", "table", "lsn", "seq", "incarnation", "partial", "undecoded", "c0", "t0",
    "c1.v", "v", "hex", "missing", "s", "t", "f", "_at", "_t", "_rows", "place",
    "folded", "touched", "element", "value", "cut",
)


def wide_tables(columns: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the columns of the two wide tables, without ``id``, by table."""
    return {"public.wide": columns, "public.parquet": [name for name in columns if not set(name) & set(" ,;{}()\n\t=")]}


def double_quoted(name: str) -> str:
    """Quote a name as standard SQL does."""
    return '"' + name.replace('"', '""') + '"'


def insert_statements(
    tables: Sequence[OddName], columns: Sequence[str], quote: Callable[[str], str], key: int
) -> list[str]:
    """Return statements that insert a row with the id ``key`` into every table."""
    statements = [
        f"INSERT INTO {quote(name.schema)}.{quote(name.table)} (id, v) VALUES ({key}, '{number} {key}')"
        for number, name in enumerate(tables)
    ]
    for table, names in wide_tables(columns).items():
        values = ", ".join(f"'{number} {key}'" for number in range(len(names)))
        statements.append(f"INSERT INTO {table} (id, {', '.join(map(quote, names))}) VALUES ({key}, {values})")
    return statements


def create_statements(
    tables: Sequence[OddName], columns: Sequence[str], quote: Callable[[str], str], text: str
) -> list[str]:
    """Return statements that create the schemas and the tables; ``text`` is the SQL type of their columns."""
    statements = [f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}" for schema in sorted({name.schema for name in tables})]
    statements += [
        f"CREATE TABLE {quote(name.schema)}.{quote(name.table)} (id int PRIMARY KEY, v {text})" for name in tables
    ]
    for table, names in wide_tables(columns).items():
        typed = ", ".join(f"{quote(name)} {text}" for name in names)
        statements.append(f"CREATE TABLE {table} (id int PRIMARY KEY, {typed})")
    return statements
