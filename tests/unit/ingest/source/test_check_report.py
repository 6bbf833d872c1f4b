"""What ``preflight`` prints: what is not in order, whole, and what happens to each table."""

from __future__ import annotations

from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Check
from dblake.ingest.source.check_report import build_report, build_script

GRANT = f'GRANT SELECT ON {", ".join(f"public.table_with_a_long_name_{n}" for n in range(9))} TO dblake;'
CHECKS = [
    Check("connect", True),
    Check("wal_level", False, "wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical';"),
    Check("table_privileges", False, "the role may not read public.b", GRANT, {"public.b": "no SELECT"}, "dump"),
    Check("slot_retention", True, "max_slot_wal_keep_size is unlimited"),
    Check("encoding", False, "LATIN1", "set source.host to the primary"),
]
TABLES = [
    TableSchema("public.a", (Column("id", "int", False, 1),)),
    TableSchema("public.b", (Column("id", "int", False, 1),)),
    TableSchema("public.log", (Column("v", "text"),)),
]


def test_report_shows_problems_whole_and_tables() -> None:
    assert build_report(CHECKS, TABLES) == [
        "✗ wal_level: wal_level is replica",
        "    ALTER SYSTEM SET wal_level = 'logical';",
        "",
        "! table_privileges: the role may not read public.b",
        f"    {GRANT}",
        "",
        "✗ encoding: LATIN1",
        "    set source.host to the primary",
        "",
        "- slot_retention: max_slot_wal_keep_size is unlimited",
        "",
        "tables that source.tables matches: 3",
        "  1 suspended",
        "    public.b (table_privileges)",
        "  1 followed, not dumped: no primary key",
        "    public.log",
        "  1 followed and dumped",
        "    public.a",
        "",
        "✓ 2 of 5 checks are met; suspended tables: 1",
    ]


def test_report_suspends_table_of_met_check() -> None:
    """A keyless table that is not published stops nothing else, so its check is met; capture suspends it."""
    checks = [Check("primary_key", True, "not captured: public.log", "", {"public.log": "not published"}, "log")]
    lines = build_report(checks, TABLES)
    assert lines[lines.index("  1 suspended") + 1] == "    public.log (primary_key)"
    assert not any("followed, not dumped" in line for line in lines)
    assert lines[-1] == "✓ 1 of 1 checks are met; suspended tables: 1"


def test_report_of_many_tables_lists_some() -> None:
    tables = [TableSchema(f"public.t{number}", (Column("id", "int", False, 1),)) for number in range(1000)]
    lines = build_report([Check("connect", True)], tables)
    assert "  1,000 followed and dumped" in lines
    assert "and 980 more" in " ".join(lines)
    assert len(lines) < 12


def test_script_has_statements_and_comments_only() -> None:
    assert build_script(CHECKS) == [
        "-- wal_level: wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical';",
        "-- table_privileges: the role may not read public.b", GRANT,
        "-- encoding: LATIN1", "-- set source.host to the primary",
    ]
