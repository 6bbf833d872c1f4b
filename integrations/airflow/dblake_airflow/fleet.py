"""One DAG for many sources: its tasks are mapped over the configuration files that exist when it runs.

Beside ``dags``, which builds DAGs of each source that is known when the file is parsed. Guarantee: each source has its
own chain of tasks, so one that fails holds up no other one; a new file is part of the next run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, chain, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from dblake_airflow.operators import JobOperator, RunOperator
from dblake_airflow.tasks import CAPTURE, JOBS, START_DATE, find_configurations

_INDEX = "{{ task.conf.rpartition('/')[2] }}"


def fleet_from(
    dag_id: str, *patterns: str, schedule: str | None = "*/15 * * * *", command: str | None = None,
    default_args: Mapping[str, Any] | None = None, max_sources: int | None = None,
) -> DAG:
    """Return a DAG that captures and runs every source whose file matches a glob; ``max_sources`` at a time.

    ``schedule`` and ``default_args`` are Airflow's: the files' sections ``airflow`` apply to ``dags_from``.
    """
    with DAG(
        dag_id, schedule=schedule, start_date=START_DATE, catchup=False, max_active_runs=1,
        default_args=dict(default_args or {}), tags=["dblake"], description="All sources: log to state tables",
    ) as dag:

        @task(task_id="sources")  # type: ignore[untyped-decorator]
        def list_sources() -> list[str]:
            if found := find_configurations(patterns):
                return found
            raise AirflowFailException(f"no file matches {', '.join(patterns)}; correct the patterns")

        @task_group(group_id="source")  # type: ignore[untyped-decorator]
        def replicate(conf: str) -> None:
            limits: dict[str, Any] = {"max_active_tis_per_dagrun": max_sources, "map_index_template": _INDEX}
            chain(
                JobOperator(task_id="capture", conf=conf, job=(CAPTURE, *JOBS[CAPTURE]), command=command, **limits),
                RunOperator(task_id="run", conf=conf, command=command, **limits),
            )

        replicate.expand(conf=list_sources())
    return dag
