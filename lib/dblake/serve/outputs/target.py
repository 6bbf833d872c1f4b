"""A configured output: its type or class with its settings, its format, and what it selects.

Place: between ``pipelines.subscribe``, which fills it from the configuration, and ``run``. Guarantee: secrets are read
when the output is made, so only the output that runs reads its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dblake.base.core.secret import Reference
from dblake.serve.consume.catch_up import CatchUpMode
from dblake.serve.consume.checkpoints import checkpoint_url
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.subscription import Live
from dblake.serve.outputs.protocol import Format, Output, OutputContext, require_no_lease
from dblake.serve.outputs.registry import make_format, make_output
from dblake.serve.outputs.stdout import StdoutOutput

STDOUT = "-"
_FORMAT_SETTINGS = "format_settings."


@dataclass(frozen=True)
class Group:
    """A consumer group of an output: its number of hash partitions, and its ZooKeeper; None: ``progress``'s."""

    partitions: int
    url: str | None = None


class OutputSettings(Protocol):
    """The configuration's section of one output."""

    def as_target(self, make_partition: Callable[..., Any], make_group: Callable[..., Any]) -> dict[str, Any]:
        """Return all settings as keyword arguments of ConfiguredOutput."""


@dataclass(frozen=True)
class ConfiguredOutput:
    """A configured output: its type or class, ``settings`` of that, and what all outputs have.

    ``secrets`` are references by key; a secret of ``format_settings`` has its name and a dot before the key.
    """

    kind: str = STDOUT
    settings: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Reference] = field(default_factory=dict)
    format: str = "native"
    format_settings: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[str] = ("*.*",)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: str = "sent"
    start: str = "bootstrap"
    live: Live = "auto"
    catch_up: CatchUpMode = "events"
    partition: Partition | None = None
    group: Group | None = None
    max_events: int = 5000
    retry_seconds: float = 300.0
    max_dead_letters: int = 100

    def checkpoint_url(self, progress: str, source: str, name: str) -> str:
        """Return the URL of the output's checkpoints, given ``progress``: a group may have a ZooKeeper of its own."""
        return checkpoint_url((self.group and self.group.url) or progress, source, name)

    @property
    def live_mode(self) -> Live:
        """Whether what has only landed is delivered: not if rows are completed, which takes the events before them."""
        return False if self.rows == "whole" else self.live

    @property
    def selection(self) -> Selection:
        """The tables, columns and keys that the output selects."""
        return Selection(self.tables, self.columns, self.partition)

    def make(
        self, name: str, source: str, facts: Mapping[str, Any], require_lease: Callable[[], None] = require_no_lease
    ) -> Output:
        """Return the output. ``facts`` describe the source, for formats that name it; see OutputContext."""
        secrets = {key: reference.resolve() for key, reference in self.secrets.items()}
        context = OutputContext(
            name, [source], self._make_format(secrets, facts), secrets, require_lease,
            self.group.partitions if self.group else None,
        )
        return StdoutOutput(context) if self.kind == STDOUT else make_output(self.kind, context, self.settings)

    def _make_format(self, secrets: Mapping[str, str], facts: Mapping[str, Any]) -> Format:
        own = {key.removeprefix(_FORMAT_SETTINGS): value for key, value in secrets.items()
               if key.startswith(_FORMAT_SETTINGS)}
        known = facts if self.format == "debezium" else {}
        return make_format(self.format, {**known, **self.format_settings, **own})


def make_outputs(sections: Mapping[str, OutputSettings]) -> dict[str, ConfiguredOutput]:
    """Return the configured outputs by name."""
    return {name: ConfiguredOutput(**section.as_target(Partition, Group)) for name, section in sections.items()}
