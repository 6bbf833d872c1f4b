"""Options of the JVM that make Spark start sooner: a class-data archive and the quick compiler.

Place: below ``session``. Guarantee: an option only saves time. A JVM that cannot use the archive, because its classes,
its version or its collector differ, ignores it and starts as without; an archive that cannot be written is not used.
"""

from __future__ import annotations


def set_java_options() -> None:
    """Add the options to the environment from which ``spark-submit`` takes those of the JVM."""
