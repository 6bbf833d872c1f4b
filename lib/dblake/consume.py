"""Consume a lake's changes in Python: the public names of subscriptions.

Place: the front of ``serve.consume``. ``docs/consumers.md`` is the contract.
"""

from __future__ import annotations

from dblake.base.lake.layout import Paths
from dblake.serve.consume import (
    Consumer,
    Control,
    ControlKind,
    Event,
    GroupSubscription,
    Partition,
    Result,
    Subscription,
    Transaction,
    open_group,
    open_subscription,
    run_consumer,
)

__all__ = [
    "Consumer", "Control", "ControlKind", "Event", "GroupSubscription", "Partition", "Paths", "Result", "Subscription",
    "Transaction", "open_group", "open_subscription", "run_consumer",
]
