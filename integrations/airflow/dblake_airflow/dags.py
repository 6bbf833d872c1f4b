"""Build DAGs from configuration files: per source one that runs the jobs and one that starts a dump on demand.

With ``airflow.verify_schedule`` another one verifies all tables.

A file in Airflow's DAG folder needs two lines (docs/airflow.md)::

    from dblake_airflow.dags import dags_from
    globals().update(dags_from("/etc/dblake/shop.yaml", command="/opt/dblake/bin/dblake"))

Guarantee: a file with a fault still yields its DAGs if ``source.name`` and ``airflow`` are valid. The fault fails the
run, where alerts see it, rather than the import, which would hide the DAG.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, chain

from dblake.config import Scheduled, load_airflow
from dblake_airflow.operators import JobOperator, RunOperator
from dblake_airflow.tasks import RUN, START_DATE, command_line, delivery, pool_of, scheduled_jobs

_DUMP_OPTIONS = (
    "{% for table in params.tables %} --table {{ table | shell }}{% else %} --all{% endfor %}"
    "{% if params['keys'] %} --keys {{ params['keys'] | shell }}{% endif %}"
)


def dags_from(
    *files: str | Path, default_args: Mapping[str, Any] | None = None, command: str | None = None
) -> dict[str, DAG]:
    """Return the DAGs of all files by id. ``default_args`` are Airflow's: callbacks, pools, ``env`` of the jobs.

    ``command`` runs the jobs: the ``dblake`` of an environment, or a checkout's ``spark-submit.sh``; by default that of
    the checkout that this package is part of, else ``dblake``.
    """
    dags = []
    for file in map(Path, files):
        conf = file.absolute()
        scheduled = load_airflow(conf)
        source, settings = scheduled.source.name, scheduled.airflow
        arguments = {
            "retries": settings.retries, "retry_delay": timedelta(seconds=settings.retry_seconds),
            **({"pool": pool_of(source)} if settings.pool_slots is not None else {}), **(default_args or {}),
        }
        jobs = _Jobs(conf, command)
        dags += [_build_pipeline(jobs, scheduled, arguments), _build_dump(jobs, source, arguments)]
        if settings.verify_schedule:
            dags.append(_build_verify(jobs, source, settings.verify_schedule, arguments))
    return {dag.dag_id: dag for dag in dags}


@dataclass(frozen=True)
class _Jobs:
    """The jobs on one configuration file, and what runs them."""

    conf: Path
    command: str | None

    def line(self, *words: str) -> str:
        """Return the command line of a job."""
        return command_line(self.conf, *words, command=self.command)

    def task(self, task_id: str, line: str, **arguments: Any) -> JobOperator:
        """Return the task that runs a command line."""
        return JobOperator(
            task_id=task_id, bash_command=line, conf=str(self.conf), command=self.command, **arguments
        )


def _dag_id(source: str) -> str:
    return f"dblake_{source}"


def _build_pipeline(jobs: _Jobs, scheduled: Scheduled, arguments: dict[str, Any]) -> DAG:
    source, settings = scheduled.source.name, scheduled.airflow
    with DAG(
        _dag_id(source), schedule=settings.schedule, start_date=START_DATE, catchup=False, max_active_runs=1,
        default_args=arguments, tags=["dblake"], description=f"Source {source}: log to state tables",
    ) as dag:
        tasks: list[JobOperator] = []
        for job, options in scheduled_jobs(settings).items():
            line = jobs.line(job, *options)
            if job == RUN:
                tasks.append(RunOperator(
                    task_id=job, bash_command=line, conf=str(jobs.conf), source=source, command=jobs.command
                ))
            else:
                tasks.append(jobs.task(job, line))
        chain(*tasks)
        if scheduled.outputs and settings.outputs == "bounded":
            # Outputs run whatever became of the run before, and of each other; the last task carries every failure.
            done = EmptyOperator(task_id="done")
            chain(tasks[-1], done)
            for name in scheduled.outputs:
                output = jobs.task(f"subscribe_{name}", jobs.line(*delivery(name)), trigger_rule="all_done")
                chain(tasks[-1], output, done)
    return dag


def _build_verify(jobs: _Jobs, source: str, schedule: str, arguments: dict[str, Any]) -> DAG:
    with DAG(
        f"{_dag_id(source)}_verify", schedule=schedule, start_date=START_DATE, catchup=False, max_active_runs=1,
        default_args=arguments, tags=["dblake"], description=f"Source {source}: compare state with the source",
    ) as dag:
        jobs.task("verify", jobs.line("verify", "--wait"))
    return dag


def _build_dump(jobs: _Jobs, source: str, arguments: dict[str, Any]) -> DAG:
    with DAG(
        f"{_dag_id(source)}_dump", schedule=None, max_active_runs=1, default_args=arguments, tags=["dblake"],
        description=f"Source {source}: dump (backfill) tables or rows", user_defined_filters={"shell": shlex.quote},
        params={
            "tables": Param([], type="array", items={"type": "string"}, description="schema.table; empty: all tables."),
            "keys": Param("", type="string",
                          description="Only these rows of one table: a JSON array with one entry per key."),
        },
    ) as dag:
        start = jobs.task("start", jobs.line("dump", "start") + _DUMP_OPTIONS)
        chain(start, TriggerDagRunOperator(task_id="run", trigger_dag_id=_dag_id(source)))
    return dag
