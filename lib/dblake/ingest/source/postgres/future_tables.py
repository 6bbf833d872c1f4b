"""Decides what captures the tables that are created later, where the patterns take every table of a schema.

Place: part of ``preflight`` and ``init_steps``. Guarantee: a schema is published as a whole only while no table of it
would then reject UPDATE and DELETE. What ``--init`` cannot do is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblake.base.core.names import abbreviated, quote_part
from dblake.ingest.source.postgres import statements
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts, WholeSchema
from dblake.ingest.source.postgres.finding import Finding
from dblake.ingest.source.postgres.settings import PostgresSettings

_SCHEMA_PUBLICATIONS_VERSION = 150000
"""The first version that publishes the tables of a schema."""


def schemas_to_publish(facts: CatalogFacts) -> list[str]:
    """Return the schemas that are not published as a whole and can be, by a superuser."""
    return [s.name for s in _unpublished(facts) if not _publishing_obstacle(s, facts)]


def check_future_tables(facts: CatalogFacts, settings: PostgresSettings) -> Finding:
    """Return a note about later tables that are not captured until ``--init`` runs again, and why."""
    details, fixes = [], []
    for schema in _unpublished(facts):
        obstacle = _publishing_obstacle(schema, facts)
        why = f" ({obstacle})" if obstacle else ""
        details.append(f"{quote_part(schema.name)} is not published as a whole{why}")
    if publishable := schemas_to_publish(facts):
        fixes.append(statements.add_schemas(settings, publishable))
    for schema in facts.schemas:
        if schema.owners:
            details.append(f"tables of {abbreviated(schema.owners)} in {quote_part(schema.name)} are not granted")
            fixes.append(statements.grant_future_select(settings, schema.name, schema.owners))
    return Finding(
        "future_tables",
        detail=f"tables that are created later wait for preflight --init: {'; '.join(details)}" if details else "",
        fix=statements.script(fixes),
    )


def describe_manual_steps(facts: CatalogFacts) -> Iterator[str]:
    """Yield what ``--init`` leaves to a person about tables that are created later."""
    again = "run preflight --init after creating tables there"
    for schema in _unpublished(facts):
        obstacle = _publishing_obstacle(schema, facts)
        if not (obstacle or facts.is_superuser):
            obstacle = "only a superuser may publish a schema"
        if obstacle:
            yield f"later tables of {quote_part(schema.name)} are not published: {obstacle}. Next: {again}"
        else:
            yield (
                f"later tables of {quote_part(schema.name)} are published: one without a primary key and without a"
                " replica identity will reject UPDATE and DELETE. Next: give each table a primary key"
            )
    for schema in facts.schemas:
        if missing := [owner for owner in schema.owners if owner not in schema.alterable]:
            yield (
                f"later tables of {abbreviated(missing)} in {quote_part(schema.name)} are not granted: the"
                f" administrator is no member of the role. Next: {again}"
            )


def _unpublished(facts: CatalogFacts) -> list[WholeSchema]:
    publication = facts.publication
    if publication and publication.has_all_tables:
        return []
    return [s for s in facts.schemas if not (publication and s.oid in publication.schemas)]


def _publishing_obstacle(schema: WholeSchema, facts: CatalogFacts) -> str:
    """Return why a schema cannot be published as a whole, or ""."""
    tables = [table for table in facts.tables if table.schema_oid == schema.oid]
    if failing := [table.qualified for table in tables if not table.is_publishable]:
        return f"UPDATE and DELETE would fail in {abbreviated(failing)}"
    if facts.publication and any(table.oid in facts.publication.narrowed for table in tables):
        return "the publication has column lists or row filters"
    if facts.server.version < _SCHEMA_PUBLICATIONS_VERSION:
        return "servers before 15 publish single tables only"
    return ""
