"""Wire ``subscribe``: the configured lake and outputs."""

from __future__ import annotations

import threading
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.serve.outputs.metrics import DeliveryCounts
from dblake.serve.outputs.run import SubscribeOptions, deliver
from dblake.serve.outputs.target import make_outputs


def run_subscribe(config: Config, name: str, stop: threading.Event, **options: Any) -> DeliveryCounts:
    """Deliver to a configured output, or to stdout; ``options`` are those of SubscribeOptions. Return the counts."""
    source, outputs = config.source, make_outputs(config.outputs)
    paths, facts = Paths(config.warehouse, source.name), {"connector": source.type, "database": source.database}
    return deliver(paths, name, outputs, SubscribeOptions(**options), config.progress, facts, stop)
