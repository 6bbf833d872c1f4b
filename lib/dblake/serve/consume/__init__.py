"""Consume a lake's changes without Spark: bootstrap, whole transactions in commit order, checkpoints, groups.

Place: behind events and state, before applications and ``outputs``. ``docs/consumers.md`` is the contract.
"""

from __future__ import annotations

from dblake.serve.consume.api import open_group, open_subscription
from dblake.serve.consume.callbacks import run_consumer
from dblake.serve.consume.consumer import Consumer, Result
from dblake.serve.consume.group import GroupSubscription
from dblake.serve.consume.model import Control, ControlKind, Event, Transaction
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.subscription import Subscription

__all__ = [
    "Consumer", "Control", "ControlKind", "Event", "GroupSubscription", "Partition", "Result", "Subscription",
    "Transaction", "open_group", "open_subscription", "run_consumer",
]
