"""Statements that change tables, told in the log's order: event triggers that write a logical message each.

PostgreSQL's log has rows and, before the first row of a table in another shape, that shape; it does not say when a
statement came, nor that a table was dropped. With ``source.log_ddl`` two event triggers do: what they write lands as
rows of kind ``ddl``, like a statement in MySQL's binlog. They tell which statement it was and of which tables, never
its text, which may hold values. Making them is for ``init``.
"""

from __future__ import annotations

import json
import logging

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.core.names import TableFilter, qualified
from dblake.source.postgres import pgoutput
from dblake.source.postgres.settings import PostgresSettings

logger = logging.getLogger(__name__)

FIRST_VERSION = 140000
"""Before it, pgoutput passes no messages on."""

_PREFIX = "dblake"
_EVENTS = {"ddl": "ddl_command_end", "drop": "sql_drop"}
_FUNCTION = """
CREATE OR REPLACE FUNCTION {function}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE tables jsonb;
BEGIN
  IF tg_event = 'sql_drop' THEN
    SELECT jsonb_agg(jsonb_build_array(schema_name, object_name)) INTO tables
    FROM pg_event_trigger_dropped_objects() WHERE object_type = 'table' AND NOT is_temporary;
  ELSE
    SELECT jsonb_agg(DISTINCT jsonb_build_array(n.nspname, c.relname)) INTO tables
    FROM pg_event_trigger_ddl_commands() d
    JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('r', 'p')
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relpersistence = 'p';
  END IF;
  IF tables IS NOT NULL THEN
    PERFORM pg_logical_emit_message(true, '""" + _PREFIX + """', jsonb_build_object(
      'statement', tg_tag, 'gone', tg_event = 'sql_drop', 'tables', tables)::text);
  END IF;
END $$
"""


def create(settings: PostgresSettings) -> list[sql.Composable]:
    """The statements that make the function and its triggers; whoever made them before, they are made anew."""
    function = sql.Identifier(settings.watermark_schema, "log_ddl")
    steps: list[sql.Composable] = [sql.SQL(_FUNCTION.strip()).format(function=function)]
    for name, event in _EVENTS.items():
        trigger = sql.Identifier(_name(settings, name))
        steps += [
            sql.SQL("DROP EVENT TRIGGER IF EXISTS {}").format(trigger),
            sql.SQL("CREATE EVENT TRIGGER {} ON " + event + " EXECUTE FUNCTION {}()").format(trigger, function),
        ]
    return steps


def enabled(cur: cursor, settings: PostgresSettings) -> bool:
    """Whether both are there and fire."""
    cur.execute(
        "SELECT count(*) FROM pg_event_trigger WHERE evtname = ANY(%s) AND evtenabled IN ('O', 'A')",
        ([_name(settings, name) for name in _EVENTS],),
    )
    (count,) = cur.fetchone()
    return bool(count == len(_EVENTS))


def told(message: bytes, wanted: TableFilter) -> dict[str, bytes]:
    """What a message says of captured tables, as payloads of rows of kind ``ddl``; nothing if it is not ours."""
    read = pgoutput.message(message)
    if read is None or read[0] != _PREFIX:
        return {}
    try:
        said = json.loads(read[1])
        does = {"statement": str(said["statement"]), "rewrites": False, "gone": bool(said["gone"])}
        tables = [(str(schema), str(table)) for schema, table in said["tables"]]
    except (ValueError, KeyError, TypeError):
        logger.warning("a message in the log has the prefix %s, and is not of dblake's event triggers", _PREFIX)
        return {}
    return {qualified(*table): json.dumps(does).encode() for table in tables if wanted(*table)}


def _name(settings: PostgresSettings, name: str) -> str:
    return f"{settings.watermark_schema}_{name}"
