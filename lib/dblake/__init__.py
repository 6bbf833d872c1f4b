"""DBLog on a lakehouse: source → capture → landing → reconcile → events → state → consumers.

The wings follow this path. ``ingest`` is a plain Python process with database drivers and no JVM: it writes
``landing``. ``payloads`` decodes. ``transform`` makes events and state, in process or on Spark, without a database
driver. ``serve`` reads them, ``operate`` runs beside them, and all share ``base``. ``config`` declares the
configuration file. ``docs/design.md`` describes the path and maps the packages.

``open`` is the entry point for programs and notebooks that read; ``dblake.consume`` and ``dblake.outputs`` are the
others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from dblake.serve.sql.lake import Lake

__all__ = ["open"]
__version__ = "0.9.0"


def open(conf: str | os.PathLike[str]) -> Lake:
    """Open the lake of a configuration file for reading, as of state's newest position.

    Raises ConfigError for a faulty one.
    """
    # Every module imports this one: nothing is imported before it is needed.
    from pathlib import Path

    from dblake.base.core.extras import named_extras
    from dblake.base.lake.layout import Paths
    from dblake.config import load_config

    with named_extras():
        from dblake.serve.sql.lake import Lake

    config = load_config(Path(conf))
    return Lake(Paths(config.warehouse, config.source.name))
