"""Name databases, Delta tables and targets by OpenLineage's naming conventions, with the client's own classes.

The conventions have no MariaDB; its tables are named like MySQL's. Any store without a convention is named by its
address: the scheme and host are the namespace, the path is the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from openlineage.client.naming.dataset import (
    ABFSS,
    GCS,
    S3,
    DatasetNaming,
    Kafka,
    LocalFileSystem,
    MySQL,
    Postgres,
)

from dblake.base.core.names import split_qualified
from dblake.operate.lineage.model import DatasetName

_PORTS = {"postgresql": "5432", "mysql": "3306", "mariadb": "3306"}
_KAFKA_PORT = "9092"


def name_source_table(kind: str, host: str, port: int, database: str | None, table: str) -> DatasetName:
    """Return the name of a table of a database; ``table`` is ``schema.table``, as everywhere."""
    schema, plain = split_qualified(table)
    return _database_table(kind, host, str(port), database or schema, schema, plain)


def name_path(path: str) -> DatasetName:
    """Return the name of a file, or of a Delta table by its folder: a path or a URL."""
    url = urlsplit(path)
    inside = url.path.strip("/")
    if url.scheme == "s3":
        return _name(S3(url.netloc, inside))
    if url.scheme == "gs":
        return _name(GCS(url.netloc, inside))
    if url.scheme == "abfss":
        container, _, host = url.netloc.partition("@")
        return _name(ABFSS(container, host.partition(".")[0], inside))
    return name_address(path) if url.netloc else _name(LocalFileSystem(path))


def name_address(address: str) -> DatasetName:
    """Return the name of what has an address: without user, password and query."""
    url = urlsplit(address)
    host = url.netloc.rpartition("@")[2]
    return DatasetName(urlunsplit((url.scheme, host, "", "", "")), url.path or "/")


def name_target(kind: str, settings: Mapping[str, Any], source: str, output: str, table: str) -> DatasetName:
    """Return the name of what an output of a type delivers a table's changes to."""
    schema, plain = split_qualified(table)

    def filled(pattern: str) -> str:
        names = {"source": source, "schema": schema, "table": plain if kind == "sql" else table}
        for key, value in names.items():
            pattern = pattern.replace(f"{{{key}}}", value)
        return pattern

    if kind == "kafka":
        host, _, port = str(settings["brokers"]).split(",")[0].strip().rpartition(":")
        return _name(Kafka(host or port, port if host else _KAFKA_PORT, filled(settings["topic"])))
    if kind == "jsonl":
        return name_path(filled(settings["path"]))
    if kind == "http":
        return name_address(settings["url"])
    if kind == "sql":
        url = urlsplit(settings["url"])
        database, port = url.path.strip("/"), str(url.port or _PORTS[url.scheme])
        target_schema = settings["schema"] or ("public" if url.scheme == "postgresql" else database)
        return _database_table(url.scheme, url.hostname or "", port, database, target_schema, filled(settings["table"]))
    return DatasetName("dblake", f"{source}.{output}")


def _database_table(kind: str, host: str, port: str, database: str, schema: str, table: str) -> DatasetName:
    if kind in ("postgres", "postgresql"):
        return _name(Postgres(host, port, database, schema, table))
    return _name(MySQL(host, port, schema, table))


def _name(naming: DatasetNaming) -> DatasetName:
    return DatasetName(naming.get_namespace(), naming.get_name())
