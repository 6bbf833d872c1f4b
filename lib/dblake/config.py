"""The configuration file: every key there is, with its meaning, its default and what it may hold.

Read by jobs and pipelines; the stages receive values. Promise: what ``load_config`` returns is complete and possible,
and whatever is not is a ConfigError that names the file, the line and the dotted key, never a secret. Secrets are
references; they are looked up only when ``PasswordReference.read`` is called, so that jobs which never talk to the
database run without them. Whether this version can talk to a kind of database is for the sources to say.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dblake.config_file import ConfigFile
from dblake.core.errors import ConfigError
from dblake.core.names import TableFilter
from dblake.core.secret import Reference
from dblake.core.zookeeper_url import ZookeeperUrl
from dblake.mask.rules import Rule

_DEFAULT_PORTS = {"postgres": 5432, "mysql": 3306, "mariadb": 3306}
_SOURCE_NAME = r"^[a-z0-9][a-z0-9_-]{0,39}$"

_BY_NAME = ("slot", "publication")
"""Keys that are made from the source's name where they are null."""
_NO_STORES = ("s3", "s3a", "s3n")
"""What Spark's Delta writes to by looking first: only one driver may. delta-rs does otherwise, and they are several."""
_SCHEME = re.compile(r"[a-z][a-z0-9+]+")

_LEAST_KEY_BYTES = 16

_Model = TypeVar("_Model", bound=BaseModel)
R = TypeVar("R", bound=Reference)


class PasswordReference(Reference):
    """Where the password is, not what it is."""

    def read(self) -> SecretStr:
        """The password as it is now. Raises ConfigError if the variable is unset or the file unreadable."""
        return SecretStr(self.resolve())


class KeyReference(Reference):
    """Where the key of hashed columns is, not what it is."""

    def read(self) -> bytes:
        """The key as it is now. Raises ConfigError if it cannot be read, or could be found out by trying."""
        key = self.resolve().encode()
        if len(key) < _LEAST_KEY_BYTES:
            raise ConfigError(
                f"{self.where}: the key is shorter than {_LEAST_KEY_BYTES} bytes, so it could be found out by trying",
                next_step="make one, with `openssl rand -hex 32` for instance",
            )
        return key


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class SourceConfig(_Section):
    """The database to capture from."""

    name: str = Field(
        pattern=_SOURCE_NAME,
        description="Folder under the warehouse, one lease, one slot: a word of a-z, 0-9, _ and -, 40 at most.",
    )
    type: Literal["postgres", "mysql", "mariadb"] = Field(description="The kind of database.")
    host: str = Field(min_length=1, description="The server itself, not a pooler or proxy in front of it.")
    port: int = Field(0, ge=1, le=65535, description="5432 (PostgreSQL) or 3306 unless given.")
    database: str = Field("", description="PostgreSQL only: the database whose tables are captured.")
    user: str = Field(min_length=1, description="The capture role; `preflight --init` can create it.")
    password: PasswordReference = Field(description="${env:NAME} or ${file:PATH}; a literal secret is refused.")
    tls: Literal["verify", "require", "disable"] = Field(
        "verify", description="verify the server's certificate, require encryption only, or disable it."
    )
    tls_ca: str | None = Field(
        None, min_length=1,
        description="A file of CAs to verify it by, in PEM. If null: libpq's own (PostgreSQL), this machine's (MySQL).",
    )
    tables: tuple[str, ...] = Field(
        strict=False, min_length=1,
        description='Globs on schema.table, case-sensitive; "!" takes tables out; parts in double quotes are literal.',
    )
    watermark_schema: str = Field(
        "dblake", min_length=1,
        description="A schema (PostgreSQL) or database (MySQL) of its own; the table in it is `watermark`.",
    )
    plugin: Literal["pgoutput", "wal2json"] = Field(
        "pgoutput", description="PostgreSQL only: what the log is read through; wal2json where it has to be."
    )
    slot: str = Field(
        "", pattern=r"^[a-z0-9_]{1,63}$",
        description="PostgreSQL only: the replication slot; dblake_<name> if null.",
    )
    publication: str = Field(
        "", min_length=1, max_length=63, description="PostgreSQL only: the publication; dblake_<name> if null."
    )
    log_ddl: bool = Field(
        False, description="PostgreSQL only, from 14 on: an event trigger tells the log of each change of a table."
    )
    server_id: int = Field(
        0, ge=0, le=4_294_967_295,
        description="MySQL and MariaDB only: the capture's number among the server's replicas; by name unless given.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_by_type(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        filled = {key: value for key, value in given.items() if value is not None or key not in _BY_NAME}
        kind, name = given.get("type"), given.get("name")
        if isinstance(kind, str) and kind in _DEFAULT_PORTS:
            filled.setdefault("port", _DEFAULT_PORTS[kind])
        if kind == "postgres" and isinstance(name, str):
            own = "dblake_" + name.replace("-", "_")
            filled.setdefault("slot", own)
            if given.get("plugin") != "wal2json":
                filled.setdefault("publication", own)
        return filled

    @field_validator("password", mode="before")
    @classmethod
    def _only_a_reference(cls, given: Any, info: ValidationInfo) -> PasswordReference:
        return _reference(PasswordReference, given, "source.password", info)

    @field_validator("tls_ca")
    @classmethod
    def _beside_the_file(cls, given: str | None, info: ValidationInfo) -> str | None:
        return None if given is None else ConfigFile.of(info.context).beside(given)

    @field_validator("tables")
    @classmethod
    def _patterns_can_be_read(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        TableFilter(list(given))
        if all(pattern.startswith("!") for pattern in given):
            raise ValueError('only takes tables out: at least one pattern must stand without "!"')
        return given

    @model_validator(mode="after")
    def _keys_fit_the_type(self) -> SourceConfig:
        if self.tls_ca and self.tls != "verify":
            raise ValueError("tls_ca only makes sense with tls: verify")
        if self.type == "postgres":
            if not self.database:
                raise ValueError("database is missing: PostgreSQL is captured one database at a time")
            if self.server_id:
                raise ValueError("server_id only makes sense for type mysql or mariadb")
            if self.plugin == "wal2json" and self.log_ddl:
                raise ValueError("log_ddl only makes sense for plugin pgoutput")
            if self.plugin == "wal2json" and self.publication:
                raise ValueError("publication only makes sense for plugin pgoutput: wal2json sends all tables")
        else:
            alien = [key for key in ("database", "slot", "publication") if getattr(self, key)]
            alien += ["plugin"] if self.plugin != "pgoutput" else []
            alien += ["log_ddl"] if self.log_ddl else []
            if alien:
                raise ValueError(f"{' and '.join(alien)} only make sense for type postgres")
        return self

    def wants(self) -> TableFilter:
        """Which tables are captured."""
        return TableFilter(list(self.tables))


class CaptureConfig(_Section):
    """Source → landing."""

    profile: Literal["default", "low_latency"] = Field(
        "default", description="default commits at most once a second, low_latency 20 times."
    )
    max_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="A landing commit holds about this much payload.")
    max_rows: int = Field(200_000, ge=1, description="A landing commit holds at most about so many rows.")
    commits_per_second: float | None = Field(
        None, gt=0, le=100, description="Landing commits a second at most; by profile unless given."
    )
    heartbeat_seconds: float = Field(
        10.0, gt=0, description="How often the log is made to move, so that idle tables do not pin it."
    )
    redump: Literal["auto", "ask"] = Field(
        "auto", description="Dump a table again by itself when it was rewritten without row events, or only say so."
    )

    @property
    def commit_rate(self) -> float:
        """Landing commits a second at most."""
        return self.commits_per_second or {"default": 1.0, "low_latency": 20.0}[self.profile]


class DumpConfig(_Section):
    """How tables are read while the log runs."""

    chunk_size: int = Field(50_000, ge=1, description="Rows a chunk at most; of wide rows fewer, about 16 MiB.")
    delay: float = Field(0.0, ge=0, description="Seconds between two chunks of one reader, to spare the database.")
    readers: int = Field(1, ge=1, le=8, description="Chunk readers at work at once, each on its own connection.")
    share: float = Field(1.0, gt=0, le=1, description="How much of the time a reader may be at work.")
    max_latency: float | None = Field(
        None, gt=0, description="While writing a watermark takes longer, in seconds, readers rest longer and longer."
    )


class ReconcileConfig(_Section):
    """Landing → events."""

    max_bytes_per_trigger: str = Field(
        "256m", pattern=r"^[1-9][0-9]*[kmg]$", description="About this much of landing is one micro-batch."
    )
    trigger_seconds: float = Field(5.0, ge=0, description="With --continuous: seconds between two micro-batches.")


class StateConfig(_Section):
    """Events → state."""

    parallel: int = Field(4, ge=1, le=64, description="Tables merged at once.")
    batches_per_step: int = Field(
        1000, ge=1, description="Landing batches folded into one merge at most: larger is cheaper, smaller is fresher."
    )
    interval_seconds: float = Field(60.0, ge=0, description="With --continuous: seconds between two steps.")


class MaintainConfig(_Section):
    """Upkeep of all tables: what may go, and when. Nothing goes that a later stage still has to read."""

    vacuum_hours: int = Field(
        168, ge=168, description="Files stay so long after they left a table, for time travel and readers under way."
    )
    tombstone_days: int = Field(30, ge=1, description="Deleted keys stay in state tables so long.")
    landing_days: int | None = Field(
        None, ge=1, description="Landing keeps what was reconciled so long; for ever unless given, to decode again."
    )
    events_days: int | None = Field(
        None, ge=1, description="Events older than this go if a later one of their key is whole; none unless given."
    )


class MaskConfig(_Section):
    """Columns that are changed before anything is landed."""

    key: KeyReference | None = Field(
        None, description="What `hash` hashes with, 16 bytes or more: ${env:NAME} or ${file:PATH}."
    )
    tables: dict[str, dict[str, Rule]] = Field(
        default_factory=dict,
        description="Globs on schema.table → column → drop, hash, or {truncate: N}, the first N characters.",
    )

    @field_validator("key", mode="before")
    @classmethod
    def _only_a_reference(cls, given: Any, info: ValidationInfo) -> KeyReference | None:
        return None if given is None else _reference(KeyReference, given, "mask.key", info)

    @field_validator("tables", mode="before")
    @classmethod
    def _rules_can_be_read(cls, given: Any) -> dict[str, dict[str, Rule]]:
        if not isinstance(given, dict):
            raise ValueError("must be patterns of tables, each with its columns")
        TableFilter([str(pattern) for pattern in given])
        for pattern, columns in given.items():
            if str(pattern).startswith("!"):
                raise ValueError(f"{pattern} takes tables out, which only source.tables can")
            if not isinstance(columns, dict) or not columns:
                raise ValueError(f"{pattern} must name its columns, each with drop, hash or {{truncate: N}}")
        return {str(pattern): {str(column): _rule(f"{pattern}, column {column}", does) for column, does in c.items()}
                for pattern, c in given.items()}

    @model_validator(mode="after")
    def _hashes_have_a_key(self) -> MaskConfig:
        if self.key is None and any(r.does == "hash" for columns in self.tables.values() for r in columns.values()):
            raise ValueError("key is missing: columns that are hashed need one")
        return self


def _rule(where: str, given: Any) -> Rule:
    if given in ("drop", "hash"):
        return Rule(given)
    length = given.get("truncate") if isinstance(given, dict) and len(given) == 1 else None
    if type(length) is not int or length < 1:
        raise ValueError(f"{where}: must be drop, hash, or {{truncate: N}} with N from 1 on")
    return Rule("truncate", length)


class AirflowConfig(_Section):
    """When Airflow runs the jobs, and how often it tries; see docs/airflow.md."""

    schedule: str | None = Field(
        "*/15 * * * *", pattern=r"^(@(continuous|hourly|daily|weekly|monthly)|\S+( +\S+){4})$",
        description="Cron, @hourly and the like, @continuous: run after run; null: only when triggered.",
    )
    capture: Literal["bounded", "supervised"] = Field(
        "bounded", description="bounded: each run captures until it has caught up; supervised: capture runs elsewhere."
    )
    retries: int = Field(3, ge=0, description="Tries after the first, of a job that ended with 75 or was killed.")
    retry_seconds: float = Field(60.0, ge=0, description="Pause before each of them.")


class StatusConfig(_Section):
    """What ``status`` says of the stages."""

    late_seconds: float = Field(
        120.0, gt=0,
        description="A stage is `late` that holds nothing younger: more than the time between two runs of its job.",
    )


class QualityConfig(_Section):
    """What ``check`` looks at beside its own invariants."""

    suites: str | None = Field(
        None, min_length=1, description="A folder of great-expectations suites, one JSON file for each table."
    )

    @field_validator("suites")
    @classmethod
    def _absolute(cls, given: str | None, info: ValidationInfo) -> str | None:
        return None if given is None else ConfigFile.of(info.context).beside(given)


class Config(_Section):
    """All that one source's pipeline needs to know."""

    warehouse: str = Field(min_length=1, description="A path or URL that delta-rs and Spark both reach.")
    progress: str = Field(
        min_length=1,
        description="Capture's own notes and its lease: file:PATH, or zookeeper://host:2181/path for stand-by.",
    )
    source: SourceConfig
    mask: MaskConfig = MaskConfig()
    capture: CaptureConfig = CaptureConfig()
    dump: DumpConfig = DumpConfig()
    reconcile: ReconcileConfig = ReconcileConfig()
    state: StateConfig = StateConfig()
    maintain: MaintainConfig = MaintainConfig()
    airflow: AirflowConfig = AirflowConfig()
    status: StatusConfig = StatusConfig()
    quality: QualityConfig = QualityConfig()

    @field_validator("warehouse")
    @classmethod
    def _absolute(cls, given: str, info: ValidationInfo) -> str:
        file = ConfigFile.of(info.context)
        scheme, _, rest = given.partition(":")
        if scheme in _NO_STORES and rest.startswith("//"):
            raise ValueError(
                "Delta's commits from Spark and from capture may overwrite one another on S3, and rows would be lost: "
                "it is not supported; Azure, GCS and HDFS are"
            )
        if rest and not rest.startswith("//") and _SCHEME.fullmatch(scheme):
            raise ValueError("must be a path, or a URL with // behind its colon")
        return given if "://" in given else file.beside(given)

    @field_validator("progress")
    @classmethod
    def _a_place_we_know(cls, given: str, info: ValidationInfo) -> str:
        file = ConfigFile.of(info.context)
        if given.startswith("file:") and not given.startswith("file://") and given != "file:":
            return "file:" + file.beside(given.removeprefix("file:"))
        if given.startswith("zookeeper://"):
            return str(ZookeeperUrl.parse(given).resolve_paths(file.beside))
        raise ValueError("must be file:PATH or zookeeper://host:port/path")


class _NamedSource(BaseModel):
    name: str = Field(pattern=_SOURCE_NAME)


class _Scheduled(BaseModel):
    source: _NamedSource
    airflow: AirflowConfig = AirflowConfig()


def load_config(path: Path) -> Config:
    """Reads and checks a configuration file. Relative paths in it are relative to the file itself."""
    return _checked(Config, ConfigFile.read(path))


def load_airflow(path: Path) -> tuple[str, AirflowConfig]:
    """The source's name and when its jobs run. What else stands in the file is left for the jobs to check."""
    scheduled = _checked(_Scheduled, ConfigFile.read(path))
    return scheduled.source.name, scheduled.airflow


def _checked(model: type[_Model], file: ConfigFile) -> _Model:
    try:
        return model.model_validate(file.content, context=file)
    except ValidationError as error:
        faults = [_fault(file, e) for e in error.errors(include_input=False, include_url=False)]
        raise ConfigError("; ".join(faults), next_step="mend the file; conf/postgres.yaml shows every key") from None


def _reference(kind: type[R], given: Any, key: str, info: ValidationInfo) -> R:
    file = ConfigFile.of(info.context)
    reference = kind.parse(given, file.where(key)) if isinstance(given, str) else None
    if not reference:
        raise ValueError("must be a reference, ${env:NAME} or ${file:PATH}; a literal secret is refused")
    return replace(reference, target=file.beside(reference.target)) if reference.kind == "file" else reference


def _fault(file: ConfigFile, error: Any) -> str:
    parts = [str(part) for part in error["loc"]]
    where = file.where(".".join(parts))
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(parts[-1], _known_keys(parts[:-1]), n=1)
        return f"{where} is not a key" + (f", did you mean {near[0]}?" if near else "")
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"


def _known_keys(section: list[str]) -> list[str]:
    model: type[BaseModel] = Config
    for part in section:
        found = model.model_fields[part].annotation
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return []
        model = found
    return list(model.model_fields)
