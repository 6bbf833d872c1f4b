"""Recognize the landing table that events come from, by its Delta table id.

Place: before a run of reconcile takes its first batch. Guarantee: batches of a landing that was created in place of
another are never taken for the batches that follow those in events, whatever their numbers. A landing that was restored
from a backup keeps its id.
"""

from __future__ import annotations

from dblake.base.core.errors import LandingGap
from dblake.base.lake.log import Application, record_batch
from dblake.transform.spark.append_table import AppendTable


def require_same_landing(events: AppendTable, source: str, table_id: str, done: int) -> None:
    """Record the id of landing in the log of events. Raises LandingGap if events are of another landing.

    ``done`` is the newest batch in events, 0 before the first. Events of earlier versions have no id recorded: they
    are taken to be of the present landing.
    """
    own, any_id = Application.landing(source, table_id), Application.landing(source)
    opened = events.opened()
    missing = [application for application in (own, any_id) if not opened.reached(application)]
    if done and missing == [own]:
        raise LandingGap(
            f"landing is another table than the one events come from, which reach batch {done}",
            next_step="bring the former landing back from a backup; if it is gone, remove all tables of this source "
                      "and its progress, and dump all again",
        )
    for application in missing:
        record_batch(events.path, application, 1)
