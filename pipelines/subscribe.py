"""Wire ``subscribe``: the configured lake and outputs."""

from __future__ import annotations

import threading
from typing import Any

from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.serve.consume.partition import Partition
from dblake.serve.outputs.metrics import DeliveryCounts
from dblake.serve.outputs.run import SubscribeOptions, deliver
from dblake.serve.outputs.target import ConfiguredOutput, Group


def configured_outputs(config: Config) -> dict[str, ConfiguredOutput]:
    """Return the configured outputs by name."""
    return {one: ConfiguredOutput(**output.as_target(Partition, Group)) for one, output in config.outputs.items()}


def run_subscribe(config: Config, name: str, stop: threading.Event, **options: Any) -> DeliveryCounts:
    """Deliver to a configured output, or to stdout; ``options`` are those of SubscribeOptions. Return the counts."""
    source = config.source
    facts = {"connector": source.type, "database": source.database}
    paths, outputs = Paths(config.warehouse, source.name), configured_outputs(config)
    return deliver(paths, name, outputs, SubscribeOptions(**options), config.progress, facts, stop)
