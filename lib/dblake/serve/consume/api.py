"""Open a subscription from plain values: what ``dblake.open(…).subscribe`` calls."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dblake.base.core.errors import ConfigError
from dblake.base.core.schema import TableSchema
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.base.lake.layout import Paths
from dblake.serve.consume.catch_up import CatchUpMode
from dblake.serve.consume.checkpoints import FILE, open_store
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.group import GroupSubscription
from dblake.serve.consume.partition import Partition
from dblake.serve.consume.subscription import Live, Subscription, SubscriptionSettings


def open_subscription(
    sources: Sequence[Paths], *, tables: Sequence[str] = ("*.*",), columns: Mapping[str, Sequence[str]] | None = None,
    partition: Partition | None = None, start: str = "bootstrap", checkpoint: str | None = None,
    resume: str | None = None, schemas: Mapping[str, TableSchema] | None = None, live: Live = "auto",
    catch_up: CatchUpMode = "events", until_caught_up: bool = False, stop: threading.Event | None = None,
) -> Subscription:
    """Return a subscription to selected tables of one or several sources; use it in a ``with`` block.

    ``start`` is ``bootstrap``, ``now``, a position or a commit time; it counts without a checkpoint. ``checkpoint`` is
    the URL of a store, ``file:PATH`` or ``zookeeper://host:port/path``; ``resume`` is a checkpoint that the caller
    keeps instead. ``schemas`` are the schemas that the consumer was written for, by table. With ``live`` transactions
    are delivered when they have landed, before they are in events; ``auto``: on a local disk, but not with
    ``until_caught_up``. With ``catch_up`` ``consolidated`` a subscription that is behind state begins with each changed
    key once, as state has it; ``auto``: if that costs less than all events. Iteration ends when ``stop`` is set, or,
    with ``until_caught_up``, after what there is. Raises UsageError for a point that cannot be parsed, ConfigError for
    an invalid pattern or URL.
    """
    if checkpoint is not None and checkpoint.startswith(FILE):
        checkpoint = FILE + str(Path(checkpoint.removeprefix(FILE)).absolute())
    settings = SubscriptionSettings(
        Selection(tables, columns or {}, partition), start, resume, until_caught_up=until_caught_up,
        schemas=schemas or {}, live=live, catch_up=catch_up,
    )
    return Subscription(sources, settings, open_store(checkpoint) if checkpoint else None, stop)


def open_group(
    sources: Sequence[Paths], *, group: str, partitions: int, tables: Sequence[str] = ("*.*",),
    columns: Mapping[str, Sequence[str]] | None = None, start: str = "bootstrap",
    schemas: Mapping[str, TableSchema] | None = None, live: Live = "auto", catch_up: CatchUpMode = "events",
    until_caught_up: bool = False, stop: threading.Event | None = None,
) -> GroupSubscription:
    """Return this process's part of a consumer group; use it in a ``with`` block.

    ``group`` is a URL ``zookeeper://host:port/path`` of the group alone. Its members share ``partitions`` hash
    partitions of the keys, each with its own checkpoint there; ``live`` and ``catch_up`` are as for a subscription.
    Iteration ends when ``stop`` is set, or, with ``until_caught_up``, after what events hold of the partitions that are
    this member's. Raises ConfigError for an invalid URL or pattern.
    """
    from dblake.serve.consume.zookeeper.checkpoint import ZookeeperCheckpoint
    from dblake.serve.consume.zookeeper.membership import ZookeeperMembership

    try:
        server = ZookeeperUrl.parse(group)
    except ValueError as error:
        raise ConfigError(f"group: {error}", next_step="correct the URL") from None
    settings = SubscriptionSettings(
        Selection(tables, columns or {}), start, until_caught_up=until_caught_up, schemas=schemas or {}, live=live,
        catch_up=catch_up,
    )

    def open_partition(number: int) -> ZookeeperCheckpoint:
        return ZookeeperCheckpoint(replace(server, root=f"{server.root}/partitions/{number}"))

    return GroupSubscription(
        sources, settings, partitions, ZookeeperMembership(server), open_partition, stop or threading.Event()
    )
