"""All sections of the configuration file; each key has a type, a default and a description.

``docs/configuration.md`` is generated from the descriptions. Guarantee: every instance is valid on its own and across
keys. Reading files and wording faults is left to ``config.load``.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from dblake.config.file import ConfigFile
from dblake.config.mask import MaskConfig
from dblake.config.outputs import OUTPUT_NAME, AnyOutput
from dblake.config.section import Section
from dblake.config.source import SourceConfig
from dblake.config.storage import StorageConfig, resolve_warehouse
from dblake.core import defaults
from dblake.core.zookeeper_url import ZookeeperUrl

_COMMITS_PER_SECOND = {"default": defaults.COMMITS_PER_SECOND, "low_latency": 20.0}
_SCHEDULE = r"^(@(continuous|hourly|daily|weekly|monthly)|\S+( +\S+){4})$"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class CaptureConfig(Section):
    """Source → landing."""

    profile: Literal["default", "low_latency"] = Field(
        "default", description="Landing commits: default at most 1 a second, low_latency at most 20."
    )
    max_bytes: int = Field(
        defaults.MAX_BATCH_BYTES, ge=1024, description="Payload bytes after which a landing batch is committed."
    )
    max_rows: int = Field(defaults.MAX_BATCH_ROWS, ge=1, description="Rows after which a landing batch is committed.")
    commits_per_second: float | None = Field(
        None, gt=0, le=100, description="Maximum landing commits per second; null: set by the profile."
    )
    heartbeat_seconds: float = Field(
        defaults.HEARTBEAT_SECONDS, gt=0,
        description="Interval between heartbeat writes, which let the database release log while captured tables are "
                    "idle.",
    )
    redump: Literal["auto", "ask"] = Field(
        "auto", description="Tables that changed without row events: auto re-dumps them, ask only reports them."
    )
    new_tables: Literal["dump", "ask", "ignore"] = Field(
        "dump",
        description="Tables that are new, or return: dump reads their rows at once, ask reports them until they are "
                    "dumped, ignore follows them from now on.",
    )

    @property
    def commit_rate(self) -> float:
        """The maximum number of landing commits per second."""
        return self.commits_per_second or _COMMITS_PER_SECOND[self.profile]


class DumpConfig(Section):
    """How tables are read while the log is followed."""

    chunk_size: int = Field(
        defaults.CHUNK_ROWS, ge=1, description="Maximum rows per chunk; chunks of wide rows stop at about 16 MiB."
    )
    delay: float = Field(
        defaults.CHUNK_DELAY_SECONDS, ge=0, description="Pause between two chunks of one reader, in seconds."
    )
    readers: int = Field(
        defaults.CHUNK_READERS, ge=1, le=8, description="Concurrent chunk readers, each with its own connection."
    )
    share: float = Field(defaults.READER_SHARE, gt=0, le=1, description="Share of its time that a reader may work.")
    max_latency: float | None = Field(
        None, gt=0,
        description="Readers back off while writing a watermark takes longer than this, in seconds; null: never.",
    )


class ReconcileConfig(Section):
    """Landing → events."""

    max_bytes_per_trigger: str = Field(
        "256m", pattern=r"^[1-9][0-9]*[kmg]$", description="Landing bytes per micro-batch, about."
    )
    trigger_seconds: float = Field(
        1.0, ge=0, description="With --continuous: minimum seconds from the start of a micro-batch to the next one's."
    )


class StateConfig(Section):
    """Events → state."""

    parallel: int = Field(4, ge=1, le=64, description="Tables merged concurrently.")
    batches_per_step: int = Field(
        1000, ge=1, description="Maximum landing batches folded per step: larger is cheaper, smaller is fresher."
    )
    interval_seconds: float = Field(60.0, ge=0, description="With --continuous: seconds between two steps.")


class RunConfig(Section):
    """What `run` does besides reconcile and state, and how often."""

    check_seconds: float | None = Field(
        3600.0, ge=0, description="Seconds after the newest check until `run` checks again what is new; null: never."
    )
    maintain_seconds: float | None = Field(
        3600.0, ge=0, description="Seconds after the newest maintenance until `run` maintains all tables; null: never."
    )


class MaintainConfig(Section):
    """Retention of all tables. Nothing expires that a later stage still has to read."""

    vacuum_hours: int = Field(
        168, ge=168, description="Hours before a file that left its table is deleted; also the reach of time travel."
    )
    tombstone_days: int = Field(30, ge=1, description="Retention of deleted keys in state tables.")
    landing_days: int | None = Field(
        None, ge=1, description="Retention of reconciled landing batches; null: unlimited, so all can be decoded again."
    )
    events_days: int | None = Field(
        None, ge=1,
        description="Retention of events that a later complete event of their key supersedes; null: unlimited.",
    )


class AirflowConfig(Section):
    """When Airflow runs the jobs and how often it retries; see docs/airflow.md."""

    schedule: str | None = Field(
        "*/15 * * * *", pattern=_SCHEDULE,
        description="Cron, @hourly and the like, or @continuous for one run after another; null: triggered runs only.",
    )
    capture: Literal["bounded", "supervised"] = Field(
        "bounded", description="bounded: each run captures until caught up; supervised: capture runs outside Airflow."
    )
    verify_schedule: str | None = Field(
        None, pattern=_SCHEDULE,
        description="When a DAG of its own verifies all tables, as `schedule`; null: without such a DAG.",
    )
    retries: int = Field(3, ge=0, description="Retries of a job that ended with 75 or was killed.")
    retry_seconds: float = Field(60.0, ge=0, description="Pause before each retry.")


class StatusConfig(Section):
    """What `status` reports as a problem."""

    late_seconds: float = Field(
        120.0, gt=0,
        description="Lag after which `status` reports a stage as `late`, in seconds; set it above the interval "
                    "between two runs.",
    )


class VerifyConfig(Section):
    """Comparing state with the source: `verify`."""

    max_age: str | None = Field(
        None, pattern=r"^[1-9][0-9]*[smhd]$",
        description="Age after which `status` reports a table's newest verification: a number and s, m, h or d, such "
                    "as 24h; null: never.",
    )
    sample: float = Field(1.0, gt=0, le=1, description="Share of each table's key ranges that `verify` reads.")

    @property
    def max_age_seconds(self) -> float | None:
        """``max_age`` in seconds."""
        return None if self.max_age is None else float(self.max_age[:-1]) * _SECONDS[self.max_age[-1]]


class QualityConfig(Section):
    """What `check` validates besides its own invariants."""

    suites: str | None = Field(
        None, min_length=1, description="Folder of great-expectations suites, one JSON file per table."
    )

    @field_validator("suites")
    @classmethod
    def _resolve_suites(cls, given: str | None, info: ValidationInfo) -> str | None:
        return None if given is None else ConfigFile.of(info.context).beside(given)


class Config(Section):
    """The configuration of one source's pipeline."""

    # Before the warehouse, which is resolved with it.
    storage: StorageConfig = StorageConfig()
    warehouse: str = Field(
        min_length=1, description="A path, `s3://bucket/prefix`, or another URL that delta-rs and Spark both reach."
    )
    progress: str = Field(
        min_length=1,
        description="Where capture keeps dump requests and its lease: file:PATH, or zookeeper://host:2181/path "
                    "with standbys.",
    )
    source: SourceConfig
    mask: MaskConfig = MaskConfig()
    capture: CaptureConfig = CaptureConfig()
    dump: DumpConfig = DumpConfig()
    reconcile: ReconcileConfig = ReconcileConfig()
    state: StateConfig = StateConfig()
    run: RunConfig = RunConfig()
    maintain: MaintainConfig = MaintainConfig()
    airflow: AirflowConfig = AirflowConfig()
    status: StatusConfig = StatusConfig()
    quality: QualityConfig = QualityConfig()
    verify: VerifyConfig = VerifyConfig()
    outputs: dict[str, AnyOutput] = Field(
        default_factory=dict, description="Where `subscribe` delivers changes: a name of your choice → its settings."
    )

    @field_validator("outputs")
    @classmethod
    def _validate_output_names(cls, given: dict[str, AnyOutput]) -> dict[str, AnyOutput]:
        for name in given:
            if not re.fullmatch(OUTPUT_NAME, name):
                raise ValueError(f"{name}: a name has a to z, 0 to 9, _ and -, and begins with a letter")
        return given

    @field_validator("warehouse")
    @classmethod
    def _resolve_warehouse(cls, given: str, info: ValidationInfo) -> str:
        return resolve_warehouse(given, info.data.get("storage", StorageConfig()), ConfigFile.of(info.context))

    @field_validator("progress")
    @classmethod
    def _resolve_progress(cls, given: str, info: ValidationInfo) -> str:
        file = ConfigFile.of(info.context)
        if given.startswith("file:") and not given.startswith("file://") and given != "file:":
            return "file:" + file.beside(given.removeprefix("file:"))
        if given.startswith("zookeeper://"):
            return str(ZookeeperUrl.parse(given).resolve_paths(file.beside))
        raise ValueError("must be file:PATH or zookeeper://host:port/path")
