"""Checks the prerequisites of the captured tables: they exist, are readable, are logged, and can be decoded.

A thousand tables give as many findings as one: a finding names the tables it concerns, and its statement corrects all
of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dblake.base.core.names import abbreviated, qualified, quote_part, split_qualified
from dblake.base.core.source import Check
from dblake.ingest.source.checks import CLASH, clashing_columns, free_name, patterns_check
from dblake.ingest.source.mysql import statements
from dblake.ingest.source.mysql.catalog import CatalogTable
from dblake.ingest.source.mysql.catalog_facts import CatalogFacts
from dblake.ingest.source.mysql.finding import finding, script
from dblake.ingest.source.mysql.foreign_keys import cascades_are_logged
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.sql_literals import identifier


def table_findings(facts: CatalogFacts, settings: MysqlSettings) -> Iterator[Check]:
    """Yield the checks of the captured tables."""
    yield _check_patterns(facts, settings)
    yield _check_column_names(facts.tables)
    yield _check_types(facts.tables)
    yield _check_privileges(facts, settings)
    yield _check_future_tables(facts, settings)
    yield _check_log_filters(facts)
    yield _check_engines(facts.tables)
    yield _check_cascades(facts)
    yield _check_primary_keys(facts.tables)


def _check_patterns(facts: CatalogFacts, settings: MysqlSettings) -> Check:
    check = patterns_check(settings.patterns, facts.names, has_tables=bool(facts.tables))
    if check.ok:
        return check
    # The catalog hides tables on which the user has no privilege, so a pattern without wildcards may name one.
    literal = [split_qualified(p) for p in settings.patterns if not p.startswith("!") and not set("*?[") & set(p)]
    account = facts.role.account if facts.role else statements.new_account(settings)
    grants = [statements.grant_select(account, *table) for table in literal if table not in facts.names]
    return Check(
        check.check, False, f"{check.detail} that user {settings.user} may see",
        "\n".join(filter(None, [
            script(grants),
            f"{check.fix}; preflight --init finds tables on which the user has no privilege",
        ])),
        affects=check.affects,
    )


def _check_column_names(tables: Sequence[CatalogTable]) -> Check:
    clashes = [(t, column) for t in tables for column in clashing_columns(t.schema)]
    return finding(
        "column_names", CLASH + abbreviated([f"{t.schema.table}.{column}" for t, column in clashes]) if clashes else "",
        script(statements.rename_column(t.schema_name, t.table_name, c, free_name(c)) for t, c in clashes),
        tables={t.schema.table: f"column_names: {CLASH}{column}" for t, column in clashes}, affects="log",
    )


def _check_types(tables: Sequence[CatalogTable]) -> Check:
    reasons = [f"{t.schema.table}: {_unsupported(t)}" for t in tables if _unsupported(t)]
    return finding(
        "unsupported", f"not captured by dblake: {abbreviated(reasons)}" if reasons else "",
        "take these tables out of source.tables, or change what is named",
        tables={t.schema.table: f"unsupported: {_unsupported(t)}" for t in tables if _unsupported(t)}, affects="log",
    )


def _check_privileges(facts: CatalogFacts, settings: MysqlSettings) -> Check:
    unreadable = [t for t in facts.tables if not facts.can_select(t)]
    account = facts.role.account if facts.role else statements.new_account(settings)
    return finding(
        "table_privileges",
        f"user {settings.user} may not read {abbreviated([t.schema.table for t in unreadable])}" if unreadable else "",
        script(statements.grant_select(account, t.schema_name, t.table_name) for t in unreadable),
        tables={t.schema.table: f"table_privileges: user {settings.user} may not read it" for t in unreadable},
        affects="dump",
    )


def _check_future_tables(facts: CatalogFacts, settings: MysqlSettings) -> Check:
    schemas = facts.partly_granted
    account = facts.role.account if facts.role else statements.new_account(settings)
    return finding(
        "future_tables",
        f"tables that are created later wait for preflight --init: user {settings.user} may not read all of "
        f"{abbreviated([quote_part(s) for s in schemas])}" if schemas else "",
        script(statements.grant_select_in_schema(account, schema) for schema in schemas), is_note=True,
    )


def _check_log_filters(facts: CatalogFacts) -> Check:
    server = facts.server
    filtered = sorted({t.schema_name for t in facts.tables if not server.logs(t.schema_name)})
    return finding(
        "binlog_filters", f"the server leaves changes of {abbreviated(filtered)} out of its log" if filtered else "",
        "start the server without binlog-do-db and binlog-ignore-db",
        tables={
            t.schema.table: "binlog_filters: the server leaves its changes out of its log"
            for t in facts.tables if not server.logs(t.schema_name)
        },
        affects="log",
    )


def _check_engines(tables: Sequence[CatalogTable]) -> Check:
    other = [f"{t.schema.table} ({t.engine})" for t in tables if t.engine != "InnoDB"]
    return finding(
        "engines",
        f"changed without transactions, so that a crash of the server may part rows and log: {abbreviated(other)}"
        if other else "",
        script(f"ALTER TABLE {_name(t)} ENGINE=InnoDB" for t in tables if t.engine != "InnoDB"), is_note=True,
    )


def _check_cascades(facts: CatalogFacts) -> Check:
    unlogged = {} if cascades_are_logged(facts.server) else facts.cascades
    names = sorted(f"{qualified(*table)} ({', '.join(keys)})" for table, keys in unlogged.items())
    return finding(
        "foreign_keys",
        f"rows that these foreign keys delete or change are not in the log: {abbreviated(names)}" if names else "",
        "let the application do what ON DELETE and ON UPDATE do here, or dump these tables again afterwards",
        is_note=True,
    )


def _check_primary_keys(tables: Sequence[CatalogTable]) -> Check:
    notes = {
        "followed from the log but never dumped, as they have no primary key":
            [t for t in tables if not t.schema.primary_key],
        "never dumped, as their keys have FLOAT columns, whose values no query can match":
            [t for t in tables if t.float_keys],
        "sorted for each chunk, as their keys consist of column prefixes": [t for t in tables if t.prefix_key],
    }
    return finding(
        "primary_key",
        "; ".join(f"{note}: {abbreviated([t.schema.table for t in noted])}" for note, noted in notes.items() if noted),
        "give these tables keys of whole columns that are not FLOAT", is_note=True,
    )


def _unsupported(table: CatalogTable) -> str:
    """Return why a table cannot be captured, "" if it can."""
    versioned = ("it is system-versioned, and logs old rows like new ones",) if table.versioned else ()
    return "; ".join((*table.unsupported, *versioned))


def _name(table: CatalogTable) -> str:
    return identifier(table.schema_name, table.table_name)
