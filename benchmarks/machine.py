"""The machine of a benchmark run, which its figures depend on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("deltalake", "pyarrow", "numpy", "pyspark", "delta-spark")


def facts(product: str, product_version: str, *drivers: str) -> dict[str, str]:
    """Return the facts to print beside the figures. The load is the average of the preceding minute."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _first("/proc/cpuinfo", "model name"),
        "memory": f"{int(_first('/proc/meminfo', 'MemTotal').split()[0]) / (1 << 20):.1f} GiB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        product: product_version,
        "Python": platform.python_version(),
        **{package: version(package) for package in (*drivers, *_PACKAGES)},
    }


def _first(file: str, key: str) -> str:
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"
