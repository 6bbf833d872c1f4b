"""The Java that test servers run with."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def find_java() -> str:
    """Return the Java of spark-submit.sh, which exports JAVA_HOME if Java is part of the environment."""
    homes = [os.environ.get("JAVA_HOME"), f"{sys.prefix}/java"]
    return next((java for home in homes if home and Path(java := f"{home}/bin/java").exists()), "java")
