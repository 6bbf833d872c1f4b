"""The prerequisites of the captured tables themselves: that they are there, may be read, are logged, and decoded.

A thousand tables give as many findings as one: each names the tables it is about, its statement mends them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dblake.core.names import abbreviated, qualified, split_qualified
from dblake.core.source import Check
from dblake.source.checks import CLASH, clashing_columns, free_name, patterns_check
from dblake.source.mysql import statements
from dblake.source.mysql.catalog import CatalogueTable
from dblake.source.mysql.catalog_facts import Survey, cascades_are_logged
from dblake.source.mysql.finding import finding, script
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.mysql.sql_literals import identifier


def table_findings(facts: Survey, settings: MysqlSettings) -> Iterator[Check]:
    """What the facts mean for the captured tables."""
    yield _patterns(facts, settings)
    yield _column_names(facts.tables)
    yield _unsupported(facts.tables)
    yield _privileges(facts, settings)
    yield _filters(facts)
    yield _engines(facts.tables)
    yield _cascades(facts)
    yield _primary_key(facts.tables)


def _patterns(facts: Survey, settings: MysqlSettings) -> Check:
    check = patterns_check(settings.patterns, facts.names, has_tables=bool(facts.tables))
    if check.ok:
        return check
    # The catalogue hides a table from who has no privilege on it, so one that is named may be there all the same.
    named_ones = [split_qualified(p) for p in settings.patterns if not p.startswith("!") and not set("*?[") & set(p)]
    account = facts.role.account if facts.role else statements.new_account(settings)
    grants = [statements.grant_select(account, *table) for table in named_ones if table not in facts.names]
    return Check(
        check.check, False, f"{check.detail} that user {settings.user} may see",
        "\n".join(filter(None, [
            script(grants),
            f"{check.fix}; tables of which the user has no privilege come to light with preflight --init",
        ])),
    )


def _column_names(tables: Sequence[CatalogueTable]) -> Check:
    bad = [(t, column) for t in tables for column in clashing_columns(t.schema)]
    return finding(
        "column_names", CLASH + abbreviated([f"{t.schema.table}.{column}" for t, column in bad]) if bad else "",
        script(statements.rename_column(t.schema_name, t.table_name, c, free_name(c)) for t, c in bad),
    )


def _unsupported(tables: Sequence[CatalogueTable]) -> Check:
    bad = [f"{t.schema.table}: {reason}" for t in tables for reason in t.unsupported]
    bad += [f"{t.schema.table}: it is system-versioned, and logs old rows like new ones" for t in tables if t.versioned]
    return finding(
        "unsupported", f"not captured by dblake: {abbreviated(bad)}" if bad else "",
        "take these tables out of source.tables, or change what is named",
    )


def _privileges(facts: Survey, settings: MysqlSettings) -> Check:
    unread = [t for t in facts.tables if not facts.may_select(t)]
    account = facts.role.account if facts.role else statements.new_account(settings)
    return finding(
        "table_privileges",
        f"user {settings.user} may not read {abbreviated([t.schema.table for t in unread])}" if unread else "",
        script(statements.grant_select(account, t.schema_name, t.table_name) for t in unread),
    )


def _filters(facts: Survey) -> Check:
    server = facts.server
    needed = {t.schema_name for t in facts.tables}
    left_out = sorted(needed & server.not_logged or (needed - server.logged_only if server.logged_only else set()))
    return finding(
        "binlog_filters", f"the server keeps changes of {abbreviated(left_out)} out of its log" if left_out else "",
        "start the server without binlog-do-db and binlog-ignore-db",
    )


def _engines(tables: Sequence[CatalogueTable]) -> Check:
    other = [f"{t.schema.table} ({t.engine})" for t in tables if t.engine != "InnoDB"]
    return finding(
        "engines",
        f"changed without transactions, so that a crash of the server may part rows and log: {abbreviated(other)}"
        if other else "",
        script(f"ALTER TABLE {_name(t)} ENGINE=InnoDB" for t in tables if t.engine != "InnoDB"), known=True,
    )


def _cascades(facts: Survey) -> Check:
    silent = {} if cascades_are_logged(facts.server) else facts.cascades
    names = sorted(f"{qualified(*table)} ({', '.join(keys)})" for table, keys in silent.items())
    return finding(
        "foreign_keys",
        f"rows that these foreign keys delete or change are not in the log: {abbreviated(names)}" if names else "",
        "have the application do what ON DELETE and ON UPDATE do here, or dump these tables again afterwards",
        known=True,
    )


def _primary_key(tables: Sequence[CatalogueTable]) -> Check:
    said = {
        "followed from the log but never dumped, for want of a primary key":
            [t for t in tables if not t.schema.primary_key],
        "never dumped, since their keys hold floats, which cannot be asked for": [t for t in tables if t.float_keys],
        "sorted for each chunk, since their keys are made of the beginnings of values": [
            t for t in tables if t.prefix_key
        ],
    }
    return finding(
        "primary_key",
        "; ".join(f"{what}: {abbreviated([t.schema.table for t in found])}" for what, found in said.items() if found),
        "give these tables keys of whole columns that are not floats", known=True,
    )


def _name(table: CatalogueTable) -> str:
    return identifier(table.schema_name, table.table_name)
