"""Run ``subscribe``: one output with its format, selection and checkpoint, from plain values.

Place: between ``pipelines.subscribe``, which has the configuration, and ``delivery``. Guarantee: an output is made,
opened, written and closed only while this process holds its checkpoint. Only the output that runs reads its secrets. A
member of a group runs like any output, with the partitions that the group assigns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dblake.base.core.errors import ConfigError, UsageError
from dblake.base.lake.layout import Paths
from dblake.serve.consume.api import open_group
from dblake.serve.consume.checkpoints import open_store
from dblake.serve.consume.documents import open_documents
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.group import GroupSubscription
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs.delivery import Delivery, DeliverySettings
from dblake.serve.outputs.feed import Feed, GroupFeed, require_lease
from dblake.serve.outputs.held_store import HeldStore
from dblake.serve.outputs.metrics import DeliveryCounts, MetricsFile
from dblake.serve.outputs.protocol import Output, require_no_lease
from dblake.serve.outputs.reporter import OutputReporter, ReportPlaces
from dblake.serve.outputs.stdout import stop_without_reader
from dblake.serve.outputs.target import STDOUT, ConfiguredOutput, Group
from dblake.serve.outputs.whole import WholeRows


@dataclass(frozen=True)
class SubscribeOptions:
    """Options of a run. ``start`` and ``tables`` replace the output's, ``checkpoint`` the place beside ``progress``."""

    start: str | None = None
    tables: Sequence[str] = ()
    until_caught_up: bool = False
    checkpoint: str | None = None
    metrics: Path | None = None


def deliver(
    paths: Paths, name: str, targets: Mapping[str, ConfiguredOutput], options: SubscribeOptions, progress: str,
    facts: Mapping[str, Any], stop: threading.Event,
) -> DeliveryCounts:
    """Deliver to the target of a name, or to stdout, until ``stop`` is set or until caught up; return the counts.

    Raises UsageError if there is no such target.
    """
    if name != STDOUT and name not in targets:
        raise UsageError(f"there is no output {name}", next_step=f"use - or one of {', '.join(targets) or '-'}")
    target = ConfiguredOutput() if name == STDOUT else targets[name]
    if name == STDOUT:
        stop_without_reader(stop)
    run = _DeliveryRun(paths, name, target, options, progress, stop)
    members = run.make_members(target.group) if target.group else None
    store = None if members else run.make_store()
    with store or nullcontext():
        if stop.is_set():  # during standby
            return DeliveryCounts()
        return run.deliver(facts, members, store)


@dataclass(frozen=True)
class _DeliveryRun:
    """What a run delivers, and from where."""

    paths: Paths
    name: str
    target: ConfiguredOutput
    options: SubscribeOptions
    progress: str
    stop: threading.Event

    @property
    def tables(self) -> Sequence[str]:
        return list(self.options.tables) or list(self.target.tables)

    @property
    def selection(self) -> Selection:
        return Selection(self.tables, self.target.columns, self.target.partition)

    def deliver(
        self, facts: Mapping[str, Any], members: GroupSubscription | None, store: HeldStore | None
    ) -> DeliveryCounts:
        """Make the output and deliver to it; the caller holds ``store``."""
        holder, target = members or store, self.target
        lease = partial(require_lease, holder.is_held) if holder else require_no_lease
        with OutputReporter(self.name, self.make_places(members, store)) as reporter:
            output = target.make(self.name, self.paths.source, facts, lease)
            open_feed = self.member_opener(output, members) if members else self.subscription_opener(output, store)
            whole = WholeRows(self.paths, self.selection, is_group=target.group is not None)
            how = DeliverySettings(
                self.name, target.max_events, target.retry_seconds, target.max_dead_letters,
                marks_checkpoints=self.name == STDOUT and bool(self.options.checkpoint),
                marks_errors=self.name == STDOUT,
                prepare=whole.complete if target.rows == "whole" else None,
            )
            return Delivery(output, open_feed, self.paths, how, self.stop, reporter).run()

    @property
    def place(self) -> str:
        """The URL beside which the output's document lies, and its checkpoint by default."""
        return self.target.checkpoint_url(self.progress, self.paths.source, self.name)

    def make_store(self) -> HeldStore | None:
        """Return the store of the output's checkpoint; None for one without."""
        url = self.options.checkpoint or (None if self.name == STDOUT else self.place)
        # A bounded run does not wait: its scheduler repeats it.
        standby = None if self.options.until_caught_up else self.stop
        return HeldStore(open_store(url, standby)) if url else None

    def make_places(self, members: GroupSubscription | None, store: HeldStore | None) -> ReportPlaces | None:
        """Return where the run reports; None for stdout without metrics, which nothing asks about."""
        selection, options, metrics = self.selection, self.options, None
        if options.metrics is not None:
            # Several members of an output have a file each.
            labels = {"source": self.paths.source, "output": self.name}
            metrics = MetricsFile(options.metrics, labels | ({"member": options.metrics.stem} if members else {}))
        elsewhere = open_documents(options.checkpoint) if options.checkpoint else None
        if self.name == STDOUT:
            return ReportPlaces(self.paths, selection, None, elsewhere, metrics=metrics) if metrics else None
        places = ReportPlaces(self.paths, selection, open_documents(self.place), elsewhere, metrics=metrics)
        if self.target.group and members:
            places.partitions, places.owned = self.target.group.partitions, lambda: members.owned
        elif store is not None:
            places.is_held = store.is_held
        return places

    def subscription_opener(self, output: Output, store: HeldStore | None) -> Callable[[str | None], Feed]:
        """Return how to open a subscription at the checkpoint that the output holds; None: at the stored one."""
        paths, options = self.paths, self.options
        wanted = SubscriptionSettings(
            self.selection, options.start or self.target.start,
            ignores_checkpoint=options.start is not None, until_caught_up=options.until_caught_up,
            live=self.target.live_mode, catch_up=self.target.catch_up,
        )

        def open_subscription(held: str | None) -> Subscription:
            has_lost_its_own = held is None and _holds_checkpoint(output)
            settings = replace(
                wanted, checkpoint=held, ignores_checkpoint=wanted.ignores_checkpoint or has_lost_its_own
            )
            return Subscription([paths], settings, store, self.stop)

        return open_subscription

    def make_members(self, group: Group) -> GroupSubscription:
        """Return this process's part of the group. Raises UsageError for options that a single member cannot honor."""
        options = self.options
        for option, value in (("--from", options.start), ("--checkpoint", options.checkpoint)):
            if value is not None:
                raise UsageError(
                    f"{option} does not apply to output {self.name}: each partition of its group has a checkpoint",
                    next_step="leave it out; another `group.url` is a new group, which begins at the output's `start`",
                )
        return open_group(
            [self.paths], group=self.place,
            partitions=group.partitions, tables=self.tables, columns=self.target.columns, start=self.target.start,
            live=self.target.live_mode, catch_up=self.target.catch_up, until_caught_up=options.until_caught_up,
            stop=self.stop,
        )

    def member_opener(self, output: Output, members: GroupSubscription) -> Callable[[str | None], Feed]:
        """Return how to open the partitions of a member, each at its checkpoint in the group.

        Raises ConfigError for an output that a group cannot share.
        """
        if _holds_checkpoint(output):
            raise self._unshareable()

        def open_member(held: str | None) -> GroupFeed:
            if held is not None:
                raise self._unshareable()
            return GroupFeed(members)

        return open_member

    def _unshareable(self) -> ConfigError:
        return ConfigError(
            f"outputs.{self.name}.group: {self.target.kind} holds a single checkpoint in its target, so processes "
            "cannot share it",
            next_step="remove `group`; to divide the work, name several outputs with different `tables`",
        )


def _holds_checkpoint(output: Output) -> bool:
    return bool(getattr(output, "holds_checkpoint", False))
