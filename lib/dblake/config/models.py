"""The configuration of one source: its sections, and the keys that all of them share.

``docs/configuration.md`` is generated from the descriptions. Guarantee: every instance is valid on its own and across
keys. The keys of a section are left to the section's module, reading files and wording faults to ``config.load``.
"""

from __future__ import annotations

import re

from pydantic import Field, ValidationInfo, field_validator

from dblake.base.core.zookeeper_url import ZookeeperUrl
from dblake.config.airflow import AirflowConfig
from dblake.config.capture import CaptureConfig, DumpConfig
from dblake.config.file import ConfigFile
from dblake.config.iceberg import IcebergConfig
from dblake.config.mask import MaskConfig
from dblake.config.monitoring import AlertsConfig, QualityConfig, StatusConfig, VerifyConfig
from dblake.config.outputs import OUTPUT_NAME, AnyOutput
from dblake.config.section import Section
from dblake.config.source import SourceConfig
from dblake.config.stages import MaintainConfig, ReconcileConfig, RunConfig, SparkConfig, StateConfig
from dblake.config.storage import StorageConfig, resolve_warehouse


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
    spark: SparkConfig = SparkConfig()
    maintain: MaintainConfig = MaintainConfig()
    iceberg: IcebergConfig = IcebergConfig()
    airflow: AirflowConfig = AirflowConfig()
    status: StatusConfig = StatusConfig()
    alerts: AlertsConfig = AlertsConfig()
    quality: QualityConfig = QualityConfig()
    verify: VerifyConfig = VerifyConfig()
    outputs: dict[str, AnyOutput] = Field(
        default_factory=dict, description="Where `subscribe` delivers changes: a name of your choice → its settings."
    )

    @field_validator("outputs")
    @classmethod
    def _validate_output_names(cls, outputs: dict[str, AnyOutput]) -> dict[str, AnyOutput]:
        for name in outputs:
            if not re.fullmatch(OUTPUT_NAME, name):
                raise ValueError(f"{name}: a name has a to z, 0 to 9, _ and -, and begins with a letter")
        return outputs

    @field_validator("outputs")
    @classmethod
    def _require_zookeeper(cls, outputs: dict[str, AnyOutput], info: ValidationInfo) -> dict[str, AnyOutput]:
        for name, output in outputs.items():
            if output.group and not output.group.url and info.data.get("progress", "").startswith("file:"):
                raise ValueError(f"{name}: because progress is a file, group needs url, zookeeper://host:2181/path")
        return outputs

    @field_validator("warehouse")
    @classmethod
    def _resolve_warehouse(cls, warehouse: str, info: ValidationInfo) -> str:
        return resolve_warehouse(warehouse, info.data.get("storage", StorageConfig()), ConfigFile.of(info.context))

    @field_validator("progress")
    @classmethod
    def _resolve_progress(cls, progress: str, info: ValidationInfo) -> str:
        file = ConfigFile.of(info.context)
        if progress.startswith("file:") and not progress.startswith("file://") and progress != "file:":
            return "file:" + file.beside(progress.removeprefix("file:"))
        if progress.startswith("zookeeper://"):
            return str(ZookeeperUrl.parse(progress).resolve_paths(file.beside))
        raise ValueError("must be file:PATH or zookeeper://host:port/path")
