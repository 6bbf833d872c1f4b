"""The section ``airflow``: when Airflow runs the jobs.

Place: a section of ``models``; the package ``dblake-airflow`` builds DAGs from it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dblake.config.outputs import WEB_ADDRESS
from dblake.config.section import Section

SCHEDULE = r"^(@(continuous|hourly|daily|weekly|monthly)|\S+( +\S+){4})$"


class AirflowConfig(Section):
    """When Airflow runs the jobs and how often it retries; see docs/airflow.md."""

    schedule: str | None = Field(
        "*/15 * * * *", pattern=SCHEDULE,
        description="Cron, @hourly and the like, or @continuous for one run after another; null: triggered runs only.",
    )
    capture: Literal["bounded", "supervised"] = Field(
        "bounded", description="bounded: each run captures until caught up; supervised: capture runs outside Airflow."
    )
    outputs: Literal["bounded", "supervised"] = Field(
        "bounded",
        description="bounded: each run delivers to every output until caught up; supervised: `subscribe` runs outside "
                    "Airflow.",
    )
    verify_schedule: str | None = Field(
        None, pattern=SCHEDULE,
        description="When a DAG of its own verifies all tables, as `schedule`; null: without such a DAG.",
    )
    pool_slots: int | None = Field(
        None, ge=1,
        description="Slots of the pool dblake_SOURCE, which all tasks of the source take; null: Airflow's default "
                    "pool.",
    )
    report_url: str | None = Field(
        None, pattern=WEB_ADDRESS,
        description="Address of the report's page, as `up --report-port` serves it: tasks link to it.",
    )
    retries: int = Field(3, ge=0, description="Retries of a job that ended with 75 or was killed.")
    retry_seconds: float = Field(60.0, ge=0, description="Pause before each retry.")
