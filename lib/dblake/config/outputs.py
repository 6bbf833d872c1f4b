"""The section ``outputs``: where ``subscribe`` delivers changes, by name.

Guarantee: patterns, paths, secrets and class names have their form. Whether a target can be reached, a table is
captured or a class exists is left to ``subscribe``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from dblake.base.core.names import TableFilter
from dblake.base.core.secret import SECRET_KEY
from dblake.base.core.tls import Tls, require_stated_protocol
from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.config.file import ConfigFile
from dblake.config.references import PasswordReference, parse_reference
from dblake.config.section import Section

OUTPUT_NAME = r"^[a-z][a-z0-9_-]{0,63}$"
WEB_ADDRESS = r"^https?://"
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_BUILT_IN_FORMATS = ("native", "debezium", "avro")


class PartitionConfig(Section):
    """The keys that one process delivers, by hash, modulo or range."""

    by: Literal["hash", "mod", "range"] = Field(
        "hash",
        description="hash: CRC-32 of the key's text modulo `of`; mod: the integer key modulo `of`; range: the integer "
                    "key divided by `of`, rounded down.",
    )
    of: int = Field(ge=1, description="Number of partitions; for range, keys per partition.")
    take: tuple[int, ...] = Field(strict=False, min_length=1, description="Numbers of the partitions delivered.")

    @model_validator(mode="after")
    def _require_partitions(self) -> PartitionConfig:
        if self.by != "range" and not all(0 <= number < self.of for number in self.take):
            raise ValueError("take must be numbers from 0 to of - 1")
        return self


class GroupConfig(Section):
    """A consumer group: processes of `subscribe --output NAME` share the output's keys through ZooKeeper."""

    partitions: int = Field(
        ge=1, description="Number of hash partitions of the keys; it is fixed, and bounds the number of processes."
    )
    url: str | None = Field(
        None,
        description="zookeeper://host:2181/path, with the parameters of `progress`; the group's nodes are below it by "
                    "source and output. null: `progress`.",
    )

    @field_validator("url")
    @classmethod
    def _resolve_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        return str(ZookeeperUrl.parse(url).resolve_paths(ConfigFile.of(info.context).beside))


class OutputConfig(Section):
    """What all outputs have in common."""

    format: str = Field("native", description="native, debezium, avro, or package.module:Class.")
    format_settings: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the format; values may be ${env:NAME} or ${file:PATH}."
    )
    tables: tuple[str, ...] = Field(
        ("*.*",), strict=False, min_length=1, description='Globs on schema.table of the tables delivered; "!" excludes.'
    )
    columns: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Table glob → columns delivered; tables that no glob matches have all. Key columns always are.",
    )
    rows: Literal["sent", "whole"] = Field(
        "sent",
        description="sent: events have the columns that the log has; whole: those that it does not repeat, too.",
    )
    start: str = Field(
        "bootstrap", min_length=1,
        description="Where the first run begins: bootstrap, now, a position or a commit time.",
    )
    live: Literal["auto"] | bool = Field(
        "auto",
        description="Whether what has landed is delivered before reconcile has it; auto: on a local disk, but not with "
                    "`rows: whole` or `--until-caught-up`.",
    )
    catch_up: Literal["events", "consolidated", "auto"] = Field(
        "events",
        description="How a start that is behind state begins. events: with all events; consolidated: with each changed "
                    "key once; auto: with what costs less.",
    )
    partition: PartitionConfig | None = Field(None, description="Share of the keys delivered; null: all.")
    group: GroupConfig | None = Field(
        None, description="Several processes share the output; instead of `partition`. null: one process."
    )
    max_events: int = Field(
        5000, ge=1, description="Events after which a write begins, about; a transaction is never divided."
    )
    retry_seconds: float = Field(
        300.0, ge=0, description="How long a failed write is retried before the job ends with 75."
    )
    max_dead_letters: int = Field(
        100, ge=0, description="Dead letters per run; one more stops the output."
    )

    @property
    def kind(self) -> str:
        """The type, or the class of a custom output."""
        return str(getattr(self, "type", ""))

    def secrets(self) -> dict[str, PasswordReference]:
        """Return the references to secrets by key; one in a map has the map's name and a dot before its key."""
        references: dict[str, PasswordReference] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            entries = {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
            references |= {key: entry for key, entry in entries.items() if isinstance(entry, PasswordReference)}
        return references

    def own_settings(self) -> dict[str, Any]:
        """Return the settings of the type, without secrets."""
        return {
            field.alias or name: without_secrets(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if name not in OutputConfig.model_fields and name not in ("type", "password")
        }

    def as_target(self, make_partition: Callable[..., Any], make_group: Callable[..., Any]) -> dict[str, Any]:
        """Return all settings as keyword arguments of ``outputs.target.Target``."""
        shared = {name: without_secrets(getattr(self, name)) for name in OutputConfig.model_fields}
        partition = make_partition(**self.partition.model_dump()) if self.partition else None
        group = make_group(**self.group.model_dump()) if self.group else None
        by_type = {"kind": self.kind, "settings": self.own_settings(), "secrets": self.secrets()}
        return {**shared, **by_type, "partition": partition, "group": group}

    @model_validator(mode="after")
    def _require_one_division(self) -> OutputConfig:
        if self.group and self.partition:
            raise ValueError("partition and group exclude each other: a group assigns its partitions itself")
        return self

    @model_validator(mode="after")
    def _require_events_for_whole_rows(self) -> OutputConfig:
        if self.live is True and self.rows == "whole":
            raise ValueError("live: true requires rows: sent: rows are completed from events, which have to come first")
        return self

    @field_validator("format_settings", "settings", "headers", mode="before", check_fields=False)
    @classmethod
    def _parse_secrets(cls, settings: Any, info: ValidationInfo) -> Any:
        if not isinstance(settings, dict):
            return settings
        return {
            key: parse_reference(PasswordReference, value, f"outputs: {key}", info)
            if SECRET_KEY.search(str(key)) or (isinstance(value, str) and value.startswith("${")) else value
            for key, value in settings.items()
        }

    @field_validator("format")
    @classmethod
    def _validate_format(cls, format_name: str) -> str:
        if format_name not in _BUILT_IN_FORMATS and not _CLASS.fullmatch(format_name):
            raise ValueError("must be native, debezium, avro or package.module:Class")
        return format_name

    @field_validator("tables")
    @classmethod
    def _validate_tables(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        TableFilter(list(patterns))
        return patterns

    @field_validator("columns")
    @classmethod
    def _validate_columns(cls, columns: dict[str, list[str]]) -> dict[str, list[str]]:
        TableFilter(list(columns))
        return columns


def without_secrets(value: Any) -> Any:
    """Return a setting; a map without its references to secrets."""
    if not isinstance(value, dict):
        return value
    return {key: entry for key, entry in value.items() if not isinstance(entry, PasswordReference)}


class JsonlOutputConfig(OutputConfig):
    """Files to which an output appends JSON lines."""

    type: Literal["jsonl"] = Field(description="jsonl")
    path: str = Field(
        min_length=1, description="File appended to; {source} and {table} make a file per source or table."
    )

    @field_validator("path")
    @classmethod
    def _resolve_path(cls, path: str, info: ValidationInfo) -> str:
        return ConfigFile.of(info.context).beside(path)


class NetworkOutputConfig(OutputConfig):
    """The keys of every output that connects to a server."""

    tls: Tls = Field(
        "verify", description="verify: verify certificate and host name; require: encrypt only; disable: plain text."
    )
    tls_ca: str | None = Field(None, min_length=1, description="CA file (PEM) for tls: verify.")

    @field_validator("tls_ca")
    @classmethod
    def _resolve_tls_ca(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else ConfigFile.of(info.context).beside(path)


class KafkaOutputConfig(NetworkOutputConfig):
    """Topics of a Kafka cluster."""

    type: Literal["kafka"] = Field(description="kafka")
    brokers: str = Field(min_length=1, description="host:port, separated by commas.")
    topic: str = Field("{source}.{table}", min_length=1, description="Topic; {source} and {table} are replaced.")
    control_topic: str | None = Field(
        "{source}.control", description="Topic of control entries; {source} is replaced. null: they are not delivered."
    )
    tombstones: bool = Field(
        True,
        description="After a delete, and for keys that a new bootstrap lacks, also produce a record without a value.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of librdkafka; a secret is ${env:NAME} or ${file:PATH}."
    )


class SqlOutputConfig(NetworkOutputConfig):
    """Tables of another database."""

    type: Literal["sql"] = Field(description="sql")
    url: str = Field(min_length=1, description="postgresql://, mysql:// or mariadb:// with user and host, no password.")
    password: PasswordReference | None = Field(
        None, description="${env:NAME} or ${file:PATH}; a literal secret is rejected."
    )
    schema_: str | None = Field(
        None, alias="schema", min_length=1,
        description="Schema (PostgreSQL) or database of the target tables, created if missing. null: public, or the "
                    "url's database.",
    )
    table: str = Field(
        "{table}", min_length=1, description="Name of a target table; {source}, {schema} and {table} are replaced."
    )

    @field_validator("password", mode="before")
    @classmethod
    def _parse_password(cls, reference: Any, info: ValidationInfo) -> PasswordReference | None:
        return None if reference is None else parse_reference(PasswordReference, reference, "outputs", info)


class HttpOutputConfig(NetworkOutputConfig):
    """Requests to a web service."""

    type: Literal["http"] = Field(description="http")
    url: str = Field(pattern=WEB_ADDRESS, description="Where batches are sent with POST; http:// needs tls: disable.")
    batch: int = Field(500, ge=1, description="Maximum events per request.")
    timeout_seconds: float = Field(30.0, gt=0, description="How long one request may take.")
    headers: dict[str, Any] = Field(
        default_factory=dict, description="Further headers; a secret is ${env:NAME} or ${file:PATH}."
    )

    @model_validator(mode="after")
    def _require_stated_protocol(self) -> HttpOutputConfig:
        require_stated_protocol(self.url, self.tls)
        return self


class CustomOutputConfig(OutputConfig):
    """An output that a class of the user's own implements."""

    class_: str = Field(alias="class", description="package.module:Class, a class that implements `Output`.")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the class; values may be ${env:NAME} or ${file:PATH}."
    )

    @property
    def kind(self) -> str:
        """The custom class, instead of a type."""
        return self.class_

    def own_settings(self) -> dict[str, Any]:
        """Return the keyword arguments of the class, without secrets."""
        return dict(without_secrets(self.settings))

    @field_validator("class_")
    @classmethod
    def _validate_class(cls, class_name: str) -> str:
        if not _CLASS.fullmatch(class_name):
            raise ValueError("must be package.module:Class")
        return class_name


def _select_type(settings: Any) -> str | None:
    if not isinstance(settings, dict):
        return getattr(settings, "type", "class")
    return "class" if "class" in settings else settings.get("type")


#: The settings of one output, by its ``type``.
AnyOutput = Annotated[
    Annotated[JsonlOutputConfig, Tag("jsonl")] | Annotated[KafkaOutputConfig, Tag("kafka")]
    | Annotated[SqlOutputConfig, Tag("sql")] | Annotated[HttpOutputConfig, Tag("http")]
    | Annotated[CustomOutputConfig, Tag("class")],
    Discriminator(
        _select_type, custom_error_type="output_type",
        custom_error_message="type must be jsonl, kafka, sql or http; or class, package.module:Class",
    ),
]
OUTPUT_TYPES: dict[str, type[OutputConfig]] = {
    "jsonl": JsonlOutputConfig, "kafka": KafkaOutputConfig, "sql": SqlOutputConfig, "http": HttpOutputConfig,
    "class": CustomOutputConfig,
}
