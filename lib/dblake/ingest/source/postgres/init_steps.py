"""The statements of ``--init``: what a database still lacks, in the order in which they run.

Place: between the facts of the catalog and ``init``, which runs or shows the statements. Guarantee: of a prepared
database there are none.
"""

from __future__ import annotations

from collections.abc import Iterator

from psycopg2 import sql

from dblake.ingest.source.postgres import ddl_trigger, statements
from dblake.ingest.source.postgres.capture_objects import WATERMARK_ROWS, WatermarkTable
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts
from dblake.ingest.source.postgres.future_tables import schemas_to_publish
from dblake.ingest.source.postgres.preflight import ALL_OPERATIONS
from dblake.ingest.source.postgres.settings import PostgresSettings


def build_steps(
    facts: CatalogFacts, settings: PostgresSettings, password: sql.Composable
) -> Iterator[sql.Composable]:
    """Yield the statements of the one transaction: role, grants, watermark table, publication, event triggers."""
    role, marks = facts.role, facts.watermarks
    if role is None:
        yield statements.create_role(settings, password, facts.server.provider)
    elif not (role.can_login and role.can_replicate):
        yield statements.grant_replication(settings, facts.server.provider)
    if role is None or not role.can_connect:
        yield statements.grant_connect(settings)
    inaccessible = {t.schema for t in facts.tables if not t.can_use_schema}
    inaccessible |= {schema.name for schema in facts.schemas if not schema.can_use}
    if inaccessible:
        yield statements.grant_usage(settings, inaccessible)
    if unreadable := [t for t in facts.tables if not t.can_select]:
        yield statements.grant_select(settings, unreadable)
    for schema in facts.schemas:
        if schema.alterable:
            yield statements.grant_future_select(settings, schema.name, schema.alterable)
    if settings.has_watermark_table:
        yield from _build_watermark_steps(marks, settings)
    else:
        if marks is None and settings.log_ddl:
            yield statements.create_watermark_schema(settings)
        if role is not None and not facts.may_emit_messages:
            yield statements.grant_messages(settings, facts.server.version)
    yield from _build_publication_steps(facts, settings)
    if settings.log_ddl and not facts.has_ddl_triggers:
        yield from ddl_trigger.create(settings)


def _build_watermark_steps(marks: WatermarkTable | None, settings: PostgresSettings) -> Iterator[sql.Composable]:
    if marks is None:
        yield statements.create_watermark_schema(settings)
    if marks is None or marks.oid is None:
        yield statements.create_watermark_table(settings)
    if marks is None or not set(WATERMARK_ROWS) <= (marks.rows or set()):
        yield statements.insert_watermark_rows(settings)
    if marks is None or not marks.can_use_schema:
        yield statements.grant_usage(settings, [settings.watermark_schema])
    if marks is None or not marks.can_read_and_update:
        yield statements.grant_watermarks(settings)


def _build_publication_steps(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[sql.Composable]:
    publication, marks = facts.publication, facts.watermarks
    publishable = [t for t in facts.tables if t.is_publishable]
    schemas = schemas_to_publish(facts) if facts.is_superuser else []
    if publication is None:
        yield statements.create_publication(settings, publishable, schemas)
        return
    missing = [t for t in publishable if not publication.publishes(t.oid, t.schema_oid)]
    is_published = marks and marks.oid is not None and publication.publishes(marks.oid, marks.schema_oid)
    lacks_marks = settings.has_watermark_table and not is_published
    if missing or (lacks_marks and not publication.has_all_tables):
        yield statements.add_tables(settings, missing, watermarks=lacks_marks)
    if schemas:
        yield statements.add_schemas(settings, schemas)
    if not publication.has_all_operations:
        yield statements.set_publication(settings, ALL_OPERATIONS)
    if not publication.is_via_root:
        yield statements.set_publication(settings, "publish_via_partition_root = true")


def build_slot_steps(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[sql.Composable]:
    """Yield the statement that creates the slot, which needs a transaction of its own."""
    if facts.slot is None:
        yield statements.create_slot(settings, facts.server.version)
