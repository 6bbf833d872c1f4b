"""Publishes new tables of whole schemas, where the capture role owns the publication and the tables.

Place: between the checks that find unpublished tables and ``source``. Guarantee: only a table that a pattern takes with
all of its schema is published, and only if no write to it starts to fail. What another session locks waits for the next
scan, what the role may not publish for ``preflight --init``. Capture dumps such a table like one that ``--init`` has
published.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import psycopg2
from psycopg2.extensions import cursor

from dblake.base.core.source import Check
from dblake.ingest.source.postgres import statements
from dblake.ingest.source.postgres.catalog_queries import read_facts
from dblake.ingest.source.postgres.settings import PostgresSettings

PUBLICATION_TABLES = "publication_tables"
_OWNED = """
SELECT c.oid FROM pg_class c, pg_publication p
WHERE c.oid = ANY(%s::oid[]) AND p.pubname = %s
AND pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE')
"""

logger = logging.getLogger(__name__)


def has_unpublished(checks: Iterable[Check]) -> bool:
    """Return True if a check names tables that are not published."""
    return any(check.check == PUBLICATION_TABLES and check.tables for check in checks)


def publish_owned_tables(cur: cursor, settings: PostgresSettings) -> int:
    """Publish the unpublished tables of whole schemas that the connected role may publish; return their number."""
    facts = read_facts(cur, settings)
    publication, whole = facts.publication, {schema.oid for schema in facts.schemas}
    if publication is None:
        return 0
    missing = [
        table for table in facts.tables
        if table.schema_oid in whole and table.is_publishable
        and not publication.publishes(table.oid, table.schema_oid)
    ]
    cur.execute(_OWNED, ([table.oid for table in missing], settings.publication))
    owned, published = {oid for (oid,) in cur.fetchall()}, 0
    for table in missing:
        if table.oid not in owned:
            continue
        try:
            cur.execute(statements.add_tables(settings, [table]))
        except (psycopg2.errors.LockNotAvailable, psycopg2.errors.UndefinedTable, psycopg2.errors.DuplicateObject):
            # It is locked, was dropped, or another session has published it: the next scan shows which.
            continue
        logger.info("table %s is new: added to publication %s", table.qualified, settings.publication)
        published += 1
    return published
