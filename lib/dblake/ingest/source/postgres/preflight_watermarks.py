"""Checks what watermarks need: the watermark table with its rows and privileges, or messages in the log.

Place: part of ``preflight``.
"""

from __future__ import annotations

from collections.abc import Iterator

from dblake.base.core.names import abbreviated
from dblake.ingest.source.postgres import statements
from dblake.ingest.source.postgres.capture_objects import WATERMARK_ROWS
from dblake.ingest.source.postgres.catalog_facts import CatalogFacts
from dblake.ingest.source.postgres.finding import Finding
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.ingest.source.postgres.watermarks import FIRST_MESSAGES_VERSION


def check_watermarks(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    """Yield the findings about the watermark table, or about messages in its place."""
    if settings.has_watermark_table:
        yield from _check_table(facts, settings)
    else:
        yield from _check_messages(facts, settings)


def _check_messages(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    is_old = facts.server.version < FIRST_MESSAGES_VERSION
    yield Finding(
        "watermark_messages", ok=not is_old,
        detail=f"PostgreSQL {facts.server.version_text} does not send log messages; 14 does" if is_old else "",
        fix="set source.watermarks to table",
    )
    is_allowed = facts.role is None or facts.may_emit_messages
    yield Finding(
        "watermark_privileges", ok=is_allowed,
        detail="" if is_allowed else f"role {settings.user} may not call pg_logical_emit_message",
        fix=statements.grant_messages(settings, facts.server.version),
    )


def _check_table(facts: CatalogFacts, settings: PostgresSettings) -> Iterator[Finding]:
    watermarks = facts.watermarks
    create = [statements.create_watermark_table(settings)]
    if watermarks is None:
        create.insert(0, statements.create_watermark_schema(settings))
        detail = f"there is no schema {settings.watermark_schema}"
    elif watermarks.oid is None:
        detail = "it does not exist"
    else:
        create.insert(0, statements.move_watermark_table(settings))
        detail = (
            "" if watermarks.is_well_formed else "it is not a plain table (id int primary key, value varchar(36))"
        )
    yield Finding("watermark_table", ok=not detail, detail=detail, fix=statements.script(create))
    rows = watermarks.rows if watermarks else None
    missing = "" if rows is None else abbreviated([str(n) for n in WATERMARK_ROWS if n not in rows])
    yield Finding(
        "watermark_rows", ok=rows is not None and not missing,
        detail="they are not readable yet" if rows is None else f"missing: {missing}" if missing else "",
        fix=statements.insert_watermark_rows(settings),
    )
    granted = watermarks is not None and watermarks.can_use_schema and watermarks.can_read_and_update
    yield Finding(
        "watermark_privileges", ok=granted,
        detail="" if granted else f"role {settings.user} may not read and update the watermark table",
        fix=statements.script([
            statements.grant_usage(settings, [settings.watermark_schema]), statements.grant_watermarks(settings),
        ]),
    )
