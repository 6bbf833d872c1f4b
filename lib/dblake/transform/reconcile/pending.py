"""Whether reconcile has anything to do, by the Delta logs alone: no Spark, and a fraction of a second.

Place: before ``stream``, which does the work. Guarantee: the answer is "no" only if schemas, events and ledger record
the newest batch of landing, each in the commit that completed it; in every other case ``stream`` decides.
"""

from __future__ import annotations

from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, newest_batch


def reconciled_batch(paths: Paths) -> int | None:
    """Return the newest landing batch if everything right of landing has reached it; None if there may be work.

    Landing without a table, without a batch or behind the events is work, since ``stream`` reports it.
    """
    landed = newest_batch(paths.landing, Application.capture(paths.source))
    application = Application.reconcile(paths.source)
    reached = (newest_batch(path, application) for path in (paths.events, paths.windows, paths.schemas))
    return landed if landed and all(batch == landed for batch in reached) else None
