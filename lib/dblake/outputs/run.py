"""Run ``subscribe``: one output with its format, selection and checkpoint, from plain values.

Place: between ``pipelines.subscribe``, which has the configuration, and ``delivery``. Only the output that runs reads
its secrets.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dblake.consume.checkpoints import checkpoint_url, open_store
from dblake.consume.filters import Selection
from dblake.consume.subscription import Subscription, SubscriptionSettings
from dblake.core.errors import UsageError
from dblake.lake.layout import Paths
from dblake.outputs.delivery import Delivery, DeliverySettings
from dblake.outputs.metrics import DeliveryCounts
from dblake.outputs.target import STDOUT, Target


@dataclass(frozen=True)
class SubscribeOptions:
    """Options of a run. ``start`` and ``tables`` replace the output's, ``checkpoint`` the place beside ``progress``."""

    start: str | None = None
    tables: Sequence[str] = ()
    until_caught_up: bool = False
    checkpoint: str | None = None
    metrics: Path | None = None


def deliver(
    paths: Paths, name: str, targets: Mapping[str, Target], options: SubscribeOptions, progress: str,
    facts: Mapping[str, Any], stop: threading.Event,
) -> DeliveryCounts:
    """Deliver to the target of a name, or to stdout, until ``stop`` is set or until caught up; return the counts.

    Raises UsageError if there is no such target.
    """
    if name != STDOUT and name not in targets:
        raise UsageError(f"there is no output {name}", next_step=f"use - or one of {', '.join(targets) or '-'}")
    target = Target() if name == STDOUT else targets[name]
    output = target.make(name, paths.source, facts)
    url = options.checkpoint or (None if name == STDOUT else checkpoint_url(progress, paths.source, name))
    store = open_store(url) if url else None
    selection = Selection(list(options.tables) or list(target.tables), target.columns, target.partition)
    wanted = SubscriptionSettings(
        selection, options.start or target.start, ignores_checkpoint=options.start is not None,
        until_caught_up=options.until_caught_up,
    )

    def open_subscription(held: str | None) -> Subscription:
        has_lost_its_own = held is None and getattr(output, "holds_checkpoint", False)
        settings = replace(
            wanted, checkpoint=held, ignores_checkpoint=wanted.ignores_checkpoint or has_lost_its_own
        )
        return Subscription([paths], settings, store, stop)

    how = DeliverySettings(
        name, target.max_events, target.retry_seconds, target.max_dead_letters, options.metrics,
        marks_checkpoints=name == STDOUT and store is not None,
    )
    return Delivery(output, open_subscription, paths, how, stop).run()
