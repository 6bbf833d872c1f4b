"""Wire ``subscribe``: the configured lake, output, format and checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dblake.config import Config, OutputConfig
from dblake.config.outputs import without_secrets
from dblake.consume.checkpoints import checkpoint_url, open_store
from dblake.consume.filters import Partition, Selection
from dblake.consume.subscription import Subscription, SubscriptionSettings
from dblake.core.errors import UsageError
from dblake.lake.layout import Paths
from dblake.outputs.delivery import Delivery, DeliverySettings
from dblake.outputs.jsonl import StdoutOutput
from dblake.outputs.metrics import DeliveryCounts
from dblake.outputs.protocol import Format, Output, OutputContext
from dblake.outputs.registry import make_format, make_output

STDOUT = "-"


def run_subscribe(
    config: Config, name: str, stop: threading.Event, *, start: str | None = None, tables: Sequence[str] = (),
    until_caught_up: bool = False, checkpoint: str | None = None, metrics: Path | None = None,
) -> DeliveryCounts:
    """Deliver to a configured output, or to stdout, until ``stop`` is set or until caught up; return the counts."""
    source = config.source.name
    paths, settings = Paths(config.warehouse, source), OutputConfig()
    if name == STDOUT:
        output: Output = StdoutOutput(OutputContext(name, [source], make_format("native")))
    elif name in config.outputs:
        settings = config.outputs[name]
        secrets = {key: reference.read().get_secret_value() for key, reference in settings.secrets().items()}
        context = OutputContext(name, [source], _make_format(config, settings, secrets), secrets)
        output = make_output(settings.kind, context, settings.own_settings())
        checkpoint = checkpoint or checkpoint_url(config.progress, source, name)
    else:
        raise UsageError(f"there is no output {name}", next_step=f"use - or one of {', '.join(config.outputs) or '-'}")
    partition = Partition(**settings.partition.model_dump()) if settings.partition else None
    selection = Selection(list(tables) or list(settings.tables), settings.columns, partition)
    wanted = SubscriptionSettings(selection, start or settings.start, None, start is not None, until_caught_up)
    store = open_store(checkpoint) if checkpoint else None

    def open_subscription(held: str | None) -> Subscription:
        begins = start is not None or (held is None and getattr(output, "holds_checkpoint", False))
        return Subscription([paths], replace(wanted, checkpoint=held, ignores_checkpoint=begins), store, stop)

    how = DeliverySettings(name, settings.max_events, settings.retry_seconds, settings.max_dead_letters, metrics,
                           marks_checkpoints=name == STDOUT and store is not None)
    return Delivery(output, open_subscription, paths, how, stop).run()


def _make_format(config: Config, settings: OutputConfig, secrets: Mapping[str, str]) -> Format:
    """Return an output's format; Debezium's names the source's kind and database."""
    prefix = "format_settings."
    own = {key.removeprefix(prefix): value for key, value in secrets.items() if key.startswith(prefix)}
    known = {"connector": config.source.type, "database": config.source.database}
    given = known if settings.format == "debezium" else {}
    return make_format(settings.format, {**given, **without_secrets(settings.format_settings), **own})
