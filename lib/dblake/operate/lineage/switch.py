"""Decide whether runs are reported, by the environment variables of OpenLineage's client.

Place: in front of ``run``, which imports the client. Guarantee: without these variables nothing is imported, and a
client that is missing is a warning, because no job depends on its lineage.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dblake.base.core.extras import missing_extra

_NAMES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_TRANSPORT = "OPENLINEAGE__TRANSPORT"

logger = logging.getLogger(__name__)


def is_reported(environment: Mapping[str, str]) -> bool:
    """Return True if the variables name a transport, and do not disable OpenLineage."""
    if environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    return any(environment.get(name) for name in _NAMES) or any(name.startswith(_TRANSPORT) for name in environment)


def has_client() -> bool:
    """Return True if OpenLineage's client is installed; otherwise warn."""
    try:
        import openlineage.client  # noqa: F401
    except ImportError as error:
        logger.warning("no lineage: %s", missing_extra(error) or type(error).__name__)
        return False
    return True
