"""Checks the capture role and the watermark table: what capture reads the log with, and writes watermarks to.

Place: part of ``preflight``, from the facts of ``catalog_facts``. Guarantee: each finding has the statement that
corrects it; ``--init`` runs the same statements.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblake.base.core.names import abbreviated
from dblake.base.core.source import Check
from dblake.ingest.source.mysql import statements
from dblake.ingest.source.mysql.catalog_facts import CatalogFacts
from dblake.ingest.source.mysql.finding import finding, script
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.statements import WATERMARK_ROWS, quote_account
from dblake.ingest.source.mysql.watermarks import WATERMARK_TABLE


def check_role(facts: CatalogFacts, settings: MysqlSettings) -> Check:
    """Return the check of the capture role and its privileges."""
    if facts.role is None:
        account = statements.new_account(settings)
        return finding(
            "role", f"there is no user {settings.user}",
            script([statements.create_user(account, statements.PASSWORD_PLACEHOLDER), statements.grant_log(account)]),
        )
    grants, account = facts.role.grants, facts.role.account
    if not (grants.has("REPLICATION SLAVE") and grants.has("REPLICATION CLIENT")):
        return finding(
            "role", f"user {settings.user} lacks REPLICATION SLAVE or REPLICATION CLIENT", statements.grant_log(account)
        )
    if grants.has("SUPER") or grants.has("CREATE USER"):
        return finding(
            "role", f"user {settings.user} is an administrator; capture needs far less",
            f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {quote_account(account)}; -- then preflight --init",
            is_note=True,
        )
    return finding("role")


def check_watermarks(facts: CatalogFacts, settings: MysqlSettings) -> Iterator[Check]:
    """Yield the checks of the watermark table."""
    table = facts.watermarks
    create = [statements.create_watermark_schema(settings), statements.create_watermark_table(settings)]
    if table is None:
        detail = f"there is no table {settings.watermark_schema}.{WATERMARK_TABLE} that the user may see"
    else:
        create[0] = statements.move_watermark_table(settings)
        detail = "" if table.is_well_formed else "it is not (id int primary key, value varchar(36)) of engine InnoDB"
    yield finding("watermark_table", detail, script(create))
    is_logged = facts.server.logs(settings.watermark_schema)
    yield finding(
        "watermark_log", "" if is_logged
        else f"the server leaves changes of {settings.watermark_schema} out of its log, so that no dump could end",
        "start the server without binlog-do-db and binlog-ignore-db, or let its log have this schema",
    )
    rows = table.rows if table else None
    missing = "" if rows is None else abbreviated([str(n) for n in WATERMARK_ROWS if n not in rows])
    yield finding(
        "watermark_rows", "they cannot be read yet" if rows is None else f"missing: {missing}" if missing else "",
        statements.insert_watermark_rows(settings),
    )
    account = facts.role.account if facts.role else statements.new_account(settings)
    yield finding(
        "watermark_privileges", "" if can_mark(facts, settings)
        else f"user {settings.user} may not read and update the watermark table",
        statements.grant_watermarks(settings, account),
    )


def can_mark(facts: CatalogFacts, settings: MysqlSettings) -> bool:
    """Return True if the capture role may read and update the watermark table."""
    role, table = facts.role, (settings.watermark_schema, WATERMARK_TABLE)
    return role is not None and role.grants.has("SELECT", *table) and role.grants.has("UPDATE", *table)
