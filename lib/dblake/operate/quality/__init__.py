"""Validate the tables of a source: invariants of landing, window ledger, events and state, and the user's own suites.

Place: off the data path; it only reads what the jobs have written. ``landing``, ``events``, ``windows`` and ``state``
define the invariants, ``user_suite`` reads the users' suites, ``selection`` decides which rows a run covers, and
``run`` composes them. ``validation`` evaluates suites with great-expectations, which no other module imports.
"""

from __future__ import annotations

import os

# great-expectations reads this once, when it is first imported.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
