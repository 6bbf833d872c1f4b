"""Checks every prerequisite of a MySQL or MariaDB source; each unmet one has the statement that corrects it.

Promises all problems at once, in an order in which their fixes can be run one after another; changes nothing; shows no
row, password or connection string. A check that is ``ok`` and has a detail is met, with a note. This module connects
and orders the checks: those of the server are left to ``preflight_server``, of the role and dblake's own table to
``preflight_role``, of the captured tables to ``preflight_tables``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pymysql

from dblake.base.core.errors import SourceError
from dblake.base.core.source import Check
from dblake.ingest.source.mysql.catalog_facts import CatalogFacts
from dblake.ingest.source.mysql.catalog_queries import read_facts
from dblake.ingest.source.mysql.connection import connect
from dblake.ingest.source.mysql.driver_errors import translate_errors
from dblake.ingest.source.mysql.finding import finding
from dblake.ingest.source.mysql.preflight_log import check_log
from dblake.ingest.source.mysql.preflight_role import check_role, check_watermarks
from dblake.ingest.source.mysql.preflight_server import check_replica, check_server
from dblake.ingest.source.mysql.preflight_tables import table_findings
from dblake.ingest.source.mysql.settings import MysqlSettings


def preflight(settings: MysqlSettings) -> list[Check]:
    """Return all checks; only ``connect`` if the capture role cannot connect."""
    try:
        conn = connect(settings, purpose="preflight")
    except SourceError as error:
        return [Check("connect", False, error.what, error.next_step)]
    try:
        return checks(conn, settings)
    finally:
        conn.close()


def checks(conn: pymysql.Connection, settings: MysqlSettings) -> list[Check]:
    """Return all checks, over a connection of the capture role or of an administrator."""
    with translate_errors(settings), conn.cursor() as cur:
        return list(findings(read_facts(cur, settings), settings))


def findings(facts: CatalogFacts, settings: MysqlSettings) -> Iterator[Check]:
    """Yield all checks of the facts."""
    yield finding("connect")
    yield from check_server(facts.server, settings)
    yield from check_log(facts.server, settings)
    yield from check_replica(facts.server, settings)
    yield check_role(facts, settings)
    yield from check_watermarks(facts, settings)
    yield from table_findings(facts, settings)
