"""Event triggers that write DDL statements into the log, as one logical message each (``source.log_ddl``).

PostgreSQL's log contains rows and, before the first row of a changed table, its new description; it contains neither
the position of the statement nor dropped tables. The messages land as rows of kind ``ddl``, as MySQL's statements do.
Guarantee: a message names the kind of statement and its tables, never its text, which may hold values. Creating the
triggers is for ``init``.
"""

from __future__ import annotations

import json
import logging

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.base.core.names import TableFilter, qualified
from dblake.ingest.source.postgres import pgoutput
from dblake.ingest.source.postgres.settings import PostgresSettings

logger = logging.getLogger(__name__)

FIRST_VERSION = 140000
"""The first version whose pgoutput sends logical messages."""

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
    """Return the statements that create or replace the function and its triggers."""
    function = sql.Identifier(settings.watermark_schema, "log_ddl")
    steps: list[sql.Composable] = [sql.SQL(_FUNCTION.strip()).format(function=function)]
    for name, event in _EVENTS.items():
        trigger = sql.Identifier(_trigger_name(settings, name))
        steps += [
            sql.SQL("DROP EVENT TRIGGER IF EXISTS {}").format(trigger),
            sql.SQL("CREATE EVENT TRIGGER {} ON " + event + " EXECUTE FUNCTION {}()").format(trigger, function),
        ]
    return steps


def are_enabled(cur: cursor, settings: PostgresSettings) -> bool:
    """Return True if both triggers exist and fire."""
    cur.execute(
        "SELECT count(*) FROM pg_event_trigger WHERE evtname = ANY(%s) AND evtenabled IN ('O', 'A')",
        ([_trigger_name(settings, name) for name in _EVENTS],),
    )
    (count,) = cur.fetchone()
    return bool(count == len(_EVENTS))


def parse_message(message: bytes, table_filter: TableFilter) -> dict[str, bytes]:
    """Return the payloads of rows of kind ``ddl`` by captured table; empty if the message is not from the triggers."""
    parsed = pgoutput.parse_message(message)
    if parsed is None or parsed[0] != _PREFIX:
        return {}
    try:
        content = json.loads(parsed[1])
        payload = {"statement": str(content["statement"]), "rewrites": False, "gone": bool(content["gone"])}
        tables = [(str(schema), str(table)) for schema, table in content["tables"]]
    except (ValueError, KeyError, TypeError):
        logger.warning("skipped a log message with prefix %s that is not from dblake's event triggers", _PREFIX)
        return {}
    return {qualified(*table): json.dumps(payload).encode() for table in tables if table_filter(*table)}


def _trigger_name(settings: PostgresSettings, name: str) -> str:
    return f"{settings.watermark_schema}_{name}"
