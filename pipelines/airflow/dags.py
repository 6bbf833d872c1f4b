"""Build DAGs from configuration files: per source one that runs the jobs and one that starts a dump on demand.

With ``airflow.verify_schedule`` another one verifies all tables.

A file in Airflow's DAG folder needs three lines (docs/airflow.md)::

    import sys; sys.path += ["/opt/dblake", "/opt/dblake/lib"]
    from pipelines.airflow.dags import dags_from
    globals().update(dags_from("/opt/dblake/conf/shop.yaml"))

Guarantee: a file with a fault still yields its DAGs if ``source.name`` and ``airflow`` are valid. The fault fails the
run, where alerts see it, rather than the import, which would hide the DAG.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, chain

from dblake.config import Scheduled, load_airflow
from pipelines.airflow.operators import JobOperator, RunOperator
from pipelines.airflow.tasks import RUN, command_line, delivery, scheduled_jobs

# Any past date: catchup is off, the next run does the work of missed ones.
_START_DATE = datetime(2026, 1, 1, tzinfo=UTC)

_DUMP_OPTIONS = (
    "{% for table in params.tables %} --table {{ table | shell }}{% else %} --all{% endfor %}"
    "{% if params['keys'] %} --keys {{ params['keys'] | shell }}{% endif %}"
)


def dags_from(*files: str | Path, default_args: Mapping[str, Any] | None = None) -> dict[str, DAG]:
    """Return the DAGs of all files by id. ``default_args`` are Airflow's: callbacks, pools, ``env`` of the jobs."""
    dags = []
    for file in map(Path, files):
        conf = file.absolute()
        scheduled = load_airflow(conf)
        source, settings = scheduled.source.name, scheduled.airflow
        arguments = {
            "retries": settings.retries, "retry_delay": timedelta(seconds=settings.retry_seconds),
            **(default_args or {}),
        }
        dags += [_build_pipeline(conf, scheduled, arguments), _build_dump(conf, source, arguments)]
        if settings.verify_schedule:
            dags.append(_build_verify(conf, source, settings.verify_schedule, arguments))
    return {dag.dag_id: dag for dag in dags}


def _dag_id(source: str) -> str:
    return f"dblake_{source}"


def _build_pipeline(conf: Path, scheduled: Scheduled, arguments: dict[str, Any]) -> DAG:
    source, settings = scheduled.source.name, scheduled.airflow
    with DAG(
        _dag_id(source), schedule=settings.schedule, start_date=_START_DATE, catchup=False, max_active_runs=1,
        default_args=arguments, tags=["dblake"], description=f"Source {source}: log to state tables",
    ) as dag:
        tasks: list[JobOperator] = []
        for job, options in scheduled_jobs(settings).items():
            command = command_line(conf, job, *options)
            if job == RUN:
                tasks.append(RunOperator(task_id=job, bash_command=command, conf=str(conf), source=source))
            else:
                tasks.append(JobOperator(task_id=job, bash_command=command))
        chain(*tasks)
        if scheduled.outputs and settings.outputs == "bounded":
            # Outputs run whatever became of the run before, and of each other; the last task carries every failure.
            done = EmptyOperator(task_id="done")
            chain(tasks[-1], done)
            for name in scheduled.outputs:
                command = command_line(conf, *delivery(name))
                output = JobOperator(task_id=f"subscribe_{name}", bash_command=command, trigger_rule="all_done")
                chain(tasks[-1], output, done)
    return dag


def _build_verify(conf: Path, source: str, schedule: str, arguments: dict[str, Any]) -> DAG:
    with DAG(
        f"{_dag_id(source)}_verify", schedule=schedule, start_date=_START_DATE, catchup=False, max_active_runs=1,
        default_args=arguments, tags=["dblake"], description=f"Source {source}: compare state with the source",
    ) as dag:
        JobOperator(task_id="verify", bash_command=command_line(conf, "verify", "--wait"))
    return dag


def _build_dump(conf: Path, source: str, arguments: dict[str, Any]) -> DAG:
    with DAG(
        f"{_dag_id(source)}_dump", schedule=None, max_active_runs=1, default_args=arguments, tags=["dblake"],
        description=f"Source {source}: dump (backfill) tables or rows", user_defined_filters={"shell": shlex.quote},
        params={
            "tables": Param([], type="array", items={"type": "string"}, description="schema.table; empty: all tables."),
            "keys": Param("", type="string",
                          description="Only these rows of one table: a JSON array with one entry per key."),
        },
    ) as dag:
        start = JobOperator(task_id="start", bash_command=command_line(conf, "dump", "start") + _DUMP_OPTIONS)
        chain(start, TriggerDagRunOperator(task_id="run", trigger_dag_id=_dag_id(source)))
    return dag
