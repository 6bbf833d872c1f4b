"""Checks the captured tables: that they exist, are readable, and identify their rows in the log.

Guarantee: a thousand tables give as many findings as one; each finding names its tables and has one fix for all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg2 import sql

from dblake.base.core.names import abbreviated, qualified, quote_part
from dblake.ingest.source.checks import CLASH, clashing_columns, free_name, patterns_check
from dblake.ingest.source.postgres import statements
from dblake.ingest.source.postgres.catalog import LOOSE_KEY
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts
from dblake.ingest.source.postgres.collations import check_collations
from dblake.ingest.source.postgres.finding import Finding
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.table_facts import Identity, Table


def table_findings(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    """Return the findings about the captured tables."""
    yield _check_patterns(facts, settings)
    yield _check_column_names(facts.tables)
    yield _check_generated_columns(facts.tables)
    yield _check_unlogged_tables(facts.unlogged)
    yield _check_storage(facts.tables)
    yield from _check_privileges(facts.tables, settings)
    yield _check_key_constraints(facts.tables)
    yield check_collations(facts)
    yield _check_replica_identity(facts)
    yield _check_toasted_identity(facts)
    yield _check_primary_key(facts, settings)


def _check_patterns(facts: CatalogFacts, settings: PostgresSettings) -> Finding:
    check = patterns_check(settings.patterns, facts.names, has_tables=bool(facts.tables))
    return Finding(check.check, check.ok, check.detail, check.fix, affects=check.affects)


def _check_column_names(tables: Sequence[Table]) -> Finding:
    clashes = [(table, name) for table in tables for name in clashing_columns(table.columns)]
    return Finding.of_names(
        "column_names", CLASH, [f"{t.qualified}.{c}" for t, c in clashes], tables=[t.qualified for t, _ in clashes],
        fix=statements.script(
            sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(
                sql.Identifier(t.schema, t.name), sql.Identifier(c), sql.Identifier(free_name(c))
            ) for t, c in clashes
        ),
    )


def _check_generated_columns(tables: Sequence[Table]) -> Finding:
    in_key = [t.qualified for t in tables if t.has_generated_key]
    details = {
        "the primary key contains a generated column, which the log omits": in_key,
        "generated columns are not captured, because the log omits them": [
            f"{t.qualified}.{quote_part(column)}" for t in tables if not t.has_generated_key for column in t.generated
        ],
    }
    return Finding(
        "generated_columns", ok=not in_key,
        detail="; ".join(f"{detail}: {abbreviated(names)}" for detail, names in details.items() if names),
        fix="remove the tables from source.tables" if in_key else "",
        tables=dict.fromkeys(in_key, "its primary key contains a generated column, which the log omits"), affects="log",
    )


def _check_unlogged_tables(tables: Sequence[tuple[str, str]]) -> Finding:
    names = [qualified(*t) for t in tables]
    return Finding(
        "unlogged_tables", detail=f"unlogged tables are not captured: {abbreviated(names)}" if tables else "",
        fix=statements.script(sql.SQL("ALTER TABLE {} SET LOGGED").format(sql.Identifier(*t)) for t in tables),
        tables=dict.fromkeys(names, "unlogged_tables: it is unlogged, so the log lacks its changes"),
        affects="followed",
    )


def _check_storage(tables: Sequence[Table]) -> Finding:
    foreign = [t for t in tables if t.foreign_storage]
    return Finding(
        "table_storage", ok=not foreign,
        detail="the log lacks changes of their rows under their names: "
        + abbreviated([f"{t.qualified} ({t.foreign_storage})" for t in foreign]) if foreign else "",
        fix="remove the tables from source.tables, or keep their rows in plain logged tables (ALTER TABLE … SET LOGGED,"
        " SET ACCESS METHOD heap)",
        tables={t.qualified: f"table_storage: {t.foreign_storage}, so the log lacks changes of it" for t in foreign},
        affects="log",
    )


def _check_privileges(tables: Sequence[Table], settings: PostgresSettings) -> Iterator[Finding]:
    closed = [t for t in tables if not t.can_use_schema]
    inaccessible = sorted({t.schema for t in closed})
    yield Finding.of_names(
        "schema_privileges", f"role {settings.user} may not use schema ", inaccessible,
        statements.grant_usage(settings, inaccessible), tables=[t.qualified for t in closed], affects="dump",
    )
    unreadable = [t for t in tables if not t.can_select]
    yield Finding.of_names(
        "table_privileges", f"role {settings.user} may not read ", [t.qualified for t in unreadable],
        statements.grant_select(settings, unreadable), affects="dump",
    )
    hidden = [t.qualified for t in tables if t.has_hidden_rows]
    yield Finding.of_names(
        "row_security", "row security hides rows from chunks but not from the log: ", hidden,
        statements.alter_role(settings, "BYPASSRLS"), affects="dump",
    )


def _check_key_constraints(tables: Sequence[Table]) -> Finding:
    loose = [t for t in tables if t.has_loose_key]
    return Finding(
        "key_constraint", ok=not loose,
        detail=f"{LOOSE_KEY}: {abbreviated([t.qualified for t in loose])}" if loose else "",
        fix=statements.script(statements.replace_key(t, *t.key_constraint) for t in loose if t.key_constraint),
        tables={t.qualified: f"key_constraint: {LOOSE_KEY}" for t in loose}, affects="log",
    )


def _check_replica_identity(facts: CatalogFacts) -> Finding:
    wrong: list[tuple[Identity, str]] = []
    tables: list[str] = []
    for table in facts.tables:
        # An identity could not help where the key itself has to be replaced.
        if table.has_loose_key or not table.columns.primary_key:
            continue
        root = table.identities[0]
        for identity in table.identities:
            lacks_key = identity.kind == "i" and not identity.index_covers_key
            # The log declares a partition's old rows complete if the root's identity is FULL.
            is_narrower = root.kind == "f" and identity.kind != "f"
            if not identity.is_effective or lacks_key or is_narrower:
                wrong.append((identity, "FULL" if is_narrower or not identity.has_usable_key else "DEFAULT"))
                tables.append(table.qualified)
    names = [qualified(identity.schema, identity.name) for identity, _ in wrong]
    return Finding.of_names(
        "replica_identity", "updated and deleted rows cannot be identified by their primary key: ", names,
        statements.script(statements.set_identity(*w) for w in wrong), tables=tables,
    )


def _check_toasted_identity(facts: CatalogFacts) -> Finding:
    version = facts.server.version
    affected = [
        (t, i) for t in facts.tables for i in t.identities if i.is_toastable and i.kind != "f" and t.columns.primary_key
    ] if version < 130007 or 140000 <= version < 140003 else []
    wrong, cause = [i for _, i in affected], "this server omits unchanged key values that are stored out of line"
    return Finding(
        "toasted_identity", ok=not wrong,
        detail=f"{cause} from the log: "
        + abbreviated([qualified(i.schema, i.name) for i in wrong]) + "; 13.7 and 14.3 log them" if wrong else "",
        fix=statements.script(statements.set_identity(i, "FULL") for i in wrong),
        tables={t.qualified: f"toasted_identity: {cause} from the log" for t, _ in affected}, affects="log",
    )


def _check_primary_key(facts: CatalogFacts, settings: PostgresSettings) -> Finding:
    keyless = [t for t in facts.tables if not t.columns.primary_key]
    publication = facts.publication
    published = [t for t in keyless if publication and publication.publishes(t.oid, t.schema_oid)]
    failing = [t for t in published if not t.is_publishable]
    unpublished = [t for t in keyless if not t.is_publishable and t not in published]
    details = {
        "no primary key, so captured from the log and not dumped": [t for t in keyless if t not in unpublished],
        "published without a replica identity, so their UPDATE and DELETE FAIL at the source": failing,
        "no primary key and no replica identity, so not captured: once published, their UPDATE and DELETE would fail"
        " at the source": unpublished,
    }
    # From PostgreSQL 18 on, FULL does not identify rows with generated columns.
    fixable = [t for t in failing + unpublished if not t.generated or facts.server.version < 180000]
    fixes = [statements.set_identity(i, "FULL") for t in fixable for i in t.identities if not i.is_effective]
    if publication and (publishable := [t for t in unpublished if t in fixable]):
        fixes.append(statements.add_tables(settings, publishable))
    return Finding(
        "primary_key",
        detail="; ".join(
            f"{detail}: {abbreviated([t.qualified for t in tables])}" for detail, tables in details.items() if tables
        ),
        fix=statements.script(fixes),
        tables={
            t.qualified: "primary_key: neither a primary key nor a replica identity, so not published"
            for t in unpublished
        },
        affects="log",
    )
