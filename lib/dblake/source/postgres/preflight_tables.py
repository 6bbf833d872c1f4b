"""The prerequisites of the captured tables themselves: that they are there, may be read, and identify their rows.

A thousand tables give as many findings as one: each names the tables it is about, its statement mends them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg2 import sql

from dblake.core.names import abbreviated, qualified, quote_part
from dblake.source.checks import CLASH, clashing, free_name, patterns_check
from dblake.source.postgres import statements
from dblake.source.postgres.catalog_facts import Identity, Survey, Table
from dblake.source.postgres.finding import Finding
from dblake.source.postgres.settings import PostgresSettings

_OTHER_PLUGIN = "take the tables out of source.tables, or set source.plugin to pgoutput"


def table_findings(facts: Survey, settings: PostgresSettings) -> Iterator[Finding]:
    """What the facts mean for the captured tables."""
    yield _patterns(facts, settings)
    yield _column_names(facts.tables)
    yield _generated(facts.tables, settings)
    yield from _unlogged(facts.unlogged)
    yield from _privileges(facts.tables, settings)
    yield _replica_identity(facts)
    yield _toasted_identity(facts)
    yield _primary_key(facts, settings)
    if settings.plugin == "wal2json":
        yield from _beyond_wal2json(facts.tables)


def _patterns(facts: Survey, settings: PostgresSettings) -> Finding:
    check = patterns_check(settings.patterns, facts.names, found=bool(facts.tables))
    return Finding(check.check, check.ok, check.detail, check.fix)


def _column_names(tables: Sequence[Table]) -> Finding:
    bad = [(table, name) for table in tables for name in clashing(table.columns)]
    return Finding(
        "column_names", ok=not bad,
        detail=CLASH + abbreviated([f"{t.qualified}.{c}" for t, c in bad]) if bad else "",
        fix=statements.script(
            sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(
                sql.Identifier(t.schema, t.name), sql.Identifier(c), sql.Identifier(free_name(c))
            ) for t, c in bad
        ),
    )


def _generated(tables: Sequence[Table], settings: PostgresSettings) -> Finding:
    if settings.plugin == "wal2json":
        found = [t.qualified for t in tables if t.generated]
        return Finding(
            "generated_columns", ok=not found,
            detail=f"wal2json does not tell columns that the server computes from others: {abbreviated(found)}"
            if found else "", fix=_OTHER_PLUGIN,
        )
    in_key = [t.qualified for t in tables if t.key_generated]
    said = {
        "the log leaves out what the server computes, and the primary key has such columns": in_key,
        "not captured, since the log leaves out what the server computes": [
            f"{t.qualified}.{quote_part(column)}" for t in tables if not t.key_generated for column in t.generated
        ],
    }
    return Finding(
        "generated_columns", ok=not in_key,
        detail="; ".join(f"{what}: {abbreviated(names)}" for what, names in said.items() if names),
        fix="take the tables out of source.tables" if in_key else "",
    )


def _unlogged(tables: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    yield Finding(
        "unlogged_tables",
        detail=f"not captured, since they write no log: {abbreviated([qualified(*t) for t in tables])}" if tables else "",
        fix=statements.script(sql.SQL("ALTER TABLE {} SET LOGGED").format(sql.Identifier(*t)) for t in tables),
    )


def _privileges(tables: Sequence[Table], settings: PostgresSettings) -> Iterator[Finding]:
    closed = sorted({t.schema for t in tables if not t.may_use_schema})
    yield Finding(
        "schema_privileges", ok=not closed,
        detail=f"role {settings.user} may not use schema {abbreviated(closed)}" if closed else "",
        fix=statements.grant_usage(settings, closed),
    )
    unread = [t for t in tables if not t.may_select]
    yield Finding(
        "table_privileges", ok=not unread,
        detail=f"role {settings.user} may not read {abbreviated([t.qualified for t in unread])}" if unread else "",
        fix=statements.grant_select(settings, unread),
    )
    hidden = [t.qualified for t in tables if t.rows_hidden]
    yield Finding(
        "row_security", ok=not hidden,
        detail=f"row security hides rows from chunks but not from the log: {abbreviated(hidden)}" if hidden else "",
        fix=statements.alter_role(settings, "BYPASSRLS"),
    )


def _replica_identity(facts: Survey) -> Finding:
    wrong: list[tuple[Identity, str]] = []
    for table in facts.tables:
        if not table.columns.primary_key:
            continue
        root = table.identities[0]
        for identity in table.identities:
            lax = identity.kind == "i" and not identity.index_covers_key
            # The log says of a partition's old rows that they are whole if its root's are.
            short = root.kind == "f" and identity.kind != "f"
            if not identity.present or lax or short:
                wrong.append((identity, "FULL" if short or not identity.key_serves else "DEFAULT"))
    names = [qualified(identity.schema, identity.name) for identity, _ in wrong]
    return Finding(
        "replica_identity", ok=not wrong,
        detail=f"updated and deleted rows cannot be identified by their primary key: {abbreviated(names)}" if wrong else "",
        fix=statements.script(statements.set_identity(*w) for w in wrong),
    )


def _toasted_identity(facts: Survey) -> Finding:
    version = facts.server.version
    wrong = [
        i for t in facts.tables for i in t.identities if i.toastable and i.kind != "f" and t.columns.primary_key
    ] if version < 130007 or 140000 <= version < 140003 else []
    return Finding(
        "toasted_identity", ok=not wrong,
        detail="this server leaves unchanged key values stored out of line out of the log: "
        + abbreviated([qualified(i.schema, i.name) for i in wrong]) + "; 13.7 and 14.3 mend it" if wrong else "",
        fix=statements.script(statements.set_identity(i, "FULL") for i in wrong),
    )


def _primary_key(facts: Survey, settings: PostgresSettings) -> Finding:
    keyless = [t for t in facts.tables if not t.columns.primary_key]
    publication = facts.publication
    published = [t for t in keyless if publication and publication.holds(t.oid, t.schema_oid)]
    failing = [t for t in published if not t.publishable]
    left_out = [t for t in keyless if not t.publishable and t not in published]
    why = ("published, their UPDATE and DELETE would fail at the source" if settings.plugin == "pgoutput"
           else "wal2json leaves out their UPDATE and DELETE")
    said = {
        "no primary key, so followed from the log and not dumped": [t for t in keyless if t not in left_out],
        "their UPDATE and DELETE FAIL at the source, being published without replica identity": failing,
        f"no primary key and no replica identity, so not followed at all: {why}": left_out,
    }
    # From PostgreSQL 18 on a row with generated columns cannot be identified by the whole of it.
    mendable = [t for t in failing + left_out if not t.generated or facts.server.version < 180000]
    fixes = [statements.set_identity(i, "FULL") for t in mendable for i in t.identities if not i.present]
    if publication and (publishable := [t for t in left_out if t in mendable]):
        fixes.append(statements.add_tables(settings, publishable))
    return Finding(
        "primary_key",
        detail="; ".join(f"{what}: {abbreviated([t.qualified for t in tables])}" for what, tables in said.items() if tables),
        fix=statements.script(fixes),
    )


def _beyond_wal2json(tables: Sequence[Table]) -> Iterator[Finding]:
    """What pgoutput can do and wal2json cannot."""
    parted = [t.qualified for t in tables if t.partitioned]
    yield Finding(
        "wal2json_partitions", ok=not parted,
        detail=f"wal2json names rows by their partitions: {abbreviated(parted)}" if parted else "", fix=_OTHER_PLUGIN,
    )
    numbers = [
        f"{t.qualified}.{quote_part(c.name)}" for t in tables for c in t.columns.columns
        if c.type.startswith(("numeric", "real", "double precision")) and not c.type.endswith("]")
    ]
    yield Finding(
        "wal2json_numbers",
        detail=f"wal2json 2.5 and before send NaN and infinity as NULL, in {abbreviated(numbers)}" if numbers else "",
        fix="install wal2json 2.6 or later on the server, if such values occur",
    )
