"""Problems of single tables: failed dumps, suspended or incomplete tables, rows that changed without row events.

Place: part of ``report``, from the documents of the progress store. Guarantee: each problem names the command that
clears it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows_of_each, quoted
from dblake.ingest.capture.stale_tables import StaleTable
from dblake.ingest.capture.table_life import KEYLESS, LifeState, TableLife, suspension_next_step
from dblake.operate.status.problem import problem
from dblake.transform.reconcile.windows import LOG_EXPIRED


def dump_problems(dumps: list[dict[str, Any]], lives: Mapping[str, TableLife]) -> list[dict[str, Any]]:
    """Return a problem for each failed dump, unless a whole dump of its table that was queued later is done.

    A table that does not exist any more has none: it is dumped when it returns.
    """
    gone = {dump["table"] for dump in dumps if lives and _is_gone(lives.get(dump["table"]))}
    done = {dump["table"]: dump["id"] for dump in dumps if dump["state"] == "done" and dump["whole"]}
    return [
        problem("dump_failed", d["table"], d["error"] or "", f"fix the cause, then dump start --table '{d['table']}'")
        for d in dumps if d["state"] == "failed" and d["id"] > done.get(d["table"], "") and d["table"] not in gone
    ]


def _is_gone(life: TableLife | None) -> bool:
    return life is None or life.state is LifeState.REMOVED


def window_problems(paths: Paths) -> list[dict[str, Any]]:
    """Return the problems that the ledger of windows shows.

    ``removal_withheld``: a table's newest whole dump did not return more rows than it may delete. ``rows_discarded``:
    dumped rows were discarded for lack of log, and no whole dump is done since.
    """
    withheld, discarded = query_rows_of_each(paths.windows, [
        "SELECT \"table\", last_value(reason ORDER BY incarnation, high_lsn) AS reason FROM t "
        "WHERE began IS NOT NULL AND status = 'closed' GROUP BY \"table\" ORDER BY \"table\"",
        f"SELECT \"table\" FROM t WHERE \"table\" IS NOT NULL GROUP BY \"table\" "
        f"HAVING max(batch) FILTER (WHERE reason = {quoted(LOG_EXPIRED)}) > "
        "coalesce(max(batch) FILTER (WHERE began IS NOT NULL AND status = 'closed'), 0) ORDER BY \"table\"",
    ])
    return [
        problem("removal_withheld", row["table"], row["reason"],
                "rebuild the table's indexes at the source and dump it; if the rows are gone there, "
                f"dump start --table '{row['table']}' --remove")
        for row in withheld if row["reason"]
    ] + [
        problem("rows_discarded", row["table"], f"rows of a dump were discarded: {LOG_EXPIRED}",
                f"dump start --table '{row['table']}'")
        for row in discarded
    ]


def life_problems(lives: Mapping[str, TableLife]) -> list[dict[str, Any]]:
    """Return a problem for each table that is suspended, or of which rows are missing."""
    return [
        problem(life.state.value, table, life.reason, _next_step(life))
        for table, life in sorted(lives.items()) if life.state in (LifeState.SUSPENDED, LifeState.INCOMPLETE)
    ]


def _next_step(life: TableLife) -> str:
    if life.state is LifeState.SUSPENDED:
        return suspension_next_step(life.reason)
    return "give it a primary key" if life.reason == KEYLESS else f"dump start --table '{life.table}'"


def stale_table_problems(
    stale: list[StaleTable], dumps: list[dict[str, Any]], lives: Mapping[str, TableLife]
) -> list[dict[str, Any]]:
    """Return a problem for each table whose rows are missing or changed without row events, until its dump is done.

    A table that is suspended or removed has none: it is dumped when it returns.
    """
    states = {(dump["id"], dump["table"]): dump["state"] for dump in dumps}
    problems = []
    for entry in stale:
        state = states.get((entry.dump_id or "", entry.table))
        life = lives.get(entry.table)
        if state == "done" or (life and life.state in (LifeState.SUSPENDED, LifeState.REMOVED)):
            continue
        is_queued = state in ("queued", "running")
        next_step = (f"run capture until dump {entry.dump_id} is done" if is_queued
                     else f"dump start --table '{entry.table}'")
        is_pending = life is not None and life.state is LifeState.PENDING
        detail = entry.why if is_pending else f"its rows changed without row events: {entry.why}"
        problems.append(problem("pending" if is_pending else "rewritten", entry.table, detail, next_step))
    return problems
