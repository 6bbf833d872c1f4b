"""The sections of the stages behind landing: reconcile, state, the run of both, and maintenance.

Place: sections of ``models``. A value sets how much a stage does at a time, how often, or what it keeps.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dblake.config.section import Section

SIZE = r"^[1-9][0-9]*[kmg]$"


class ReconcileConfig(Section):
    """How reconcile turns landing into events."""

    max_bytes_per_trigger: str = Field(
        "256m", pattern=SIZE, description="Approximate landing bytes per micro-batch."
    )
    trigger_seconds: float = Field(
        1.0, ge=0, description="With --continuous: minimum seconds from the start of a micro-batch to the next one's."
    )


class StateConfig(Section):
    """How state folds events into its tables."""

    parallel: int = Field(4, ge=1, le=64, description="Tables merged concurrently, unless Spark does it.")
    batches_per_step: int = Field(
        1000, ge=1, description="Maximum landing batches folded per step: larger is cheaper, smaller is fresher."
    )
    interval_seconds: float = Field(60.0, ge=0, description="With --continuous: seconds between two steps.")


class SparkConfig(Section):
    """How much of the work right of landing runs on Spark."""

    engine: Literal["auto", "spark"] = Field(
        "auto", description="Where rows are decoded, joined, folded and written: `auto` where it is cheapest, in "
                            "process or on Spark; `spark` in Spark tasks alone, whatever the size.",
    )


class RunConfig(Section):
    """What `run` does besides reconcile and state, and how often."""

    check_seconds: float | None = Field(
        3600.0, ge=0, description="Seconds after the newest check until `run` checks new data; null: never."
    )
    maintain_seconds: float | None = Field(
        3600.0, ge=0, description="Seconds after the newest maintenance until `run` maintains all tables; null: never."
    )


class MaintainConfig(Section):
    """Retention of all tables. Nothing expires that a later stage still has to read."""

    vacuum_hours: int = Field(
        168, ge=168, description="Hours before a file that left its table is deleted; also the reach of time travel."
    )
    tombstone_days: int = Field(
        30, ge=1, description="Retention of deleted keys in state tables, of the frontier and of results of `check`."
    )
    landing_days: int | None = Field(
        None, ge=1, description="Retention of reconciled landing batches; null: unlimited, so all can be decoded again."
    )
    events_days: int | None = Field(
        None, ge=1,
        description="Retention of events that a later complete event of their key supersedes; null: unlimited.",
    )
