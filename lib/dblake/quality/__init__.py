"""Checks of what the jobs have made: invariants of landing, ledger, events and state, and the user's own suites.

Beside the path. ``landing``, ``events``, ``windows`` and ``state`` say what must hold, ``own`` reads suites that users
wrote, ``validation`` asks great-expectations, which nothing else imports.
"""

from __future__ import annotations

import os

# Before great-expectations is imported by anybody: it reads this once.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
