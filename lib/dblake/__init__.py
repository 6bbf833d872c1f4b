"""DBLog on a lakehouse: source → capture → landing → reconcile → events → state → consumers.

Left of ``landing`` runs a plain Python process with database drivers and no JVM: ``source``, ``mask``, ``capture``.
Right of it runs Spark without a database driver: ``reconcile``, ``redecode``, ``events``, ``state``, ``sql``,
``maintenance``, ``quality``, ``spark``. Both halves share ``core``, ``lake``, ``formats``, ``landing`` and ``decode``;
``status`` reads both, ``read`` joins events and state to readings, and ``config`` declares the configuration file.
``docs/design.md`` describes the path.

``open`` is the entry point for programs and notebooks that read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from dblake.serve.sql.lake import Lake

__all__ = ["open"]
__version__ = "0.1.0"


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
