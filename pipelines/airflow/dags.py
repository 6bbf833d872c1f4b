"""From configuration files to DAGs: for each source one that runs its jobs, and one that asks for dumps when told to.

A file in Airflow's DAG folder needs three lines (docs/airflow.md)::

    import sys; sys.path += ["/opt/dblake", "/opt/dblake/lib"]
    from pipelines.airflow.dags import dags_from
    globals().update(dags_from("/opt/dblake/conf/shop.yaml"))

Promise: a file with a mistake in it still gives its DAGs, as long as they can be laid out at all. The mistake fails the
run, where somebody is told of it, and not the import, which takes the DAG out of sight.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, chain

from dblake.config import AirflowConfig, load_airflow
from pipelines.airflow.operators import JobOperator, StateOperator
from pipelines.airflow.tasks import STATE, jobs, line

# Any day that has passed: runs that were missed are not made up for, the next one does their work.
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

_CHOSEN = (
    "{% for table in params.tables %} --table {{ table | shell }}{% else %} --all{% endfor %}"
    "{% if params['keys'] %} --keys {{ params['keys'] | shell }}{% endif %}"
)


def dags_from(*files: str | Path, default_args: Mapping[str, Any] | None = None) -> dict[str, DAG]:
    """The DAGs of all files, by id. ``default_args`` are Airflow's: callbacks, pools, ``env`` of the jobs."""
    made = []
    for file in map(Path, files):
        conf = file.absolute()
        source, settings = load_airflow(conf)
        arguments = {
            "retries": settings.retries, "retry_delay": timedelta(seconds=settings.retry_seconds),
            **(default_args or {}),
        }
        made += [_pipeline(conf, source, settings, arguments), _dump(conf, source, arguments)]
    return {dag.dag_id: dag for dag in made}


def _name(source: str) -> str:
    return f"dblake_{source}"


def _pipeline(conf: Path, source: str, settings: AirflowConfig, arguments: dict[str, Any]) -> DAG:
    with DAG(
        _name(source), schedule=settings.schedule, start_date=_BEGIN, catchup=False, max_active_runs=1,
        default_args=arguments, tags=["dblake"], description=f"Source {source}: from its log to its state tables",
    ) as dag:
        tasks: list[JobOperator] = []
        for job, options in jobs(settings).items():
            command = line(conf, job, *options)
            if job == STATE:
                tasks.append(StateOperator(task_id=job, bash_command=command, conf=str(conf), source=source))
            else:
                tasks.append(JobOperator(task_id=job, bash_command=command))
        chain(*tasks)
    return dag


def _dump(conf: Path, source: str, arguments: dict[str, Any]) -> DAG:
    with DAG(
        f"{_name(source)}_dump", schedule=None, max_active_runs=1, default_args=arguments, tags=["dblake"],
        description=f"Source {source}: read tables, or rows, again", user_defined_filters={"shell": shlex.quote},
        params={
            "tables": Param([], type="array", items={"type": "string"}, description="schema.table; none means all."),
            "keys": Param("", type="string",
                          description="Only these rows of the one table: JSON, an array with an entry for each key."),
        },
    ) as dag:
        start = JobOperator(task_id="start", bash_command=line(conf, "dump", "start") + _CHOSEN)
        chain(start, TriggerDagRunOperator(task_id="run", trigger_dag_id=_name(source)))
    return dag
