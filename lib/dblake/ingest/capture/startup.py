"""What the capture process sets up before it starts, to stay small: no pandas, one memory allocator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    """Hides pandas from pyarrow, which imports it where it exists to recognize its types: 50 MB and 0.3 s."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:  # noqa: ARG002
        """Raise ModuleNotFoundError for pandas, and leave every other module to the next finder."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def limit_memory() -> None:
    """Keep pandas from being imported, and let Arrow use the system's allocator, in this process.

    Arrow's own allocator would hold a second reserve beside the system's.
    """
    sys.meta_path.insert(0, _NoPandas())
    pa.set_memory_pool(pa.system_memory_pool())
