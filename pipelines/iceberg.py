"""Wire the publishing of Iceberg tables: from the configuration to the publisher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dblake.base.lake.layout import Paths
from dblake.config import Config

if TYPE_CHECKING:
    from dblake.serve.iceberg.publisher import Publisher


def open_publisher(config: Config) -> Publisher | None:
    """Return what publishes the source's tables; None without a catalog. Resolves the catalog's secrets."""
    settings = config.iceberg
    if not settings.catalog:
        return None
    # Imports the catalog's client, which a source without Iceberg saves.
    from dblake.serve.iceberg.publisher import Publisher

    source = config.source.name
    return Publisher(
        Paths(config.warehouse, source), settings.read_catalog(), settings.namespace or source.replace("-", "_"),
        every_seconds=settings.every_seconds, has_events=settings.events,
    )
