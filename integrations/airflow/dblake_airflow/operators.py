"""Run dblake's jobs under Airflow, with retries decided by exit codes.

Guarantee: a job that ended with 75 or was killed fails so that Airflow's retries apply; any other failure is final; a
job that Airflow stopped never counts as done. ``tasks`` builds the command lines.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk.exceptions import AirflowException

from dblake_airflow.assets import any_table, table_asset
from dblake_airflow.links import ReportLink
from dblake_airflow.status import read_status, require_success
from dblake_airflow.tasks import RUN, changed_tables, command_line


class JobOperator(BashOperator):
    """A task that runs one job: ``job`` and its options on ``conf``, or the command line ``bash_command``.

    ``conf`` may be mapped. ``command`` runs the job instead of the default. Other arguments are BashOperator's.
    """

    template_fields = (*BashOperator.template_fields, "conf")
    operator_extra_links = (ReportLink(),)

    def __init__(
        self, *, conf: str = "", job: Sequence[str] = (), command: str | None = None, bash_command: str = "",
        **arguments: Any,
    ) -> None:
        if job and isinstance(conf, str):
            bash_command = command_line(conf, *job, command=command)
        super().__init__(bash_command=bash_command, **arguments)
        self.conf = conf
        self.job = tuple(job)
        self.command = command
        self._stopped = False

    def execute(self, context: Any) -> Any:
        """Run the command and return its last line of output."""
        bash = shutil.which("bash") or "bash"
        line = self.bash_command or command_line(self.conf, *self.job, command=self.command)
        done = self.subprocess_hook.run_command([bash, "-c", line], env=self.get_env(context), cwd=self.cwd)
        if self._stopped:
            # A stopped job ends with 0, which Airflow would take for success.
            raise AirflowException("stopped before its end")
        require_success(done.exit_code)
        return done.output

    def on_kill(self) -> None:
        """Request the job to stop, which it does at a safe point."""
        self._stopped = True
        super().on_kill()


class RunOperator(JobOperator):
    """The job ``run``; after a success it announces the tables that changed since the last announcement.

    Without ``source`` it announces them by the alias of a fleet, ``any_table()``.
    """

    def __init__(self, *, conf: str, source: str | None = None, **arguments: Any) -> None:
        job = {} if "bash_command" in arguments else {"job": (RUN,)}
        super().__init__(outlets=[any_table(source)], conf=conf, **(job | arguments))
        self.source = source

    def execute(self, context: Any) -> dict[str, int]:
        """Run the job, announce changed tables and return every state table's version for the next comparison."""
        super().execute(context)
        document = read_status(self.conf, self.get_env(context), self.command)
        # Versions, not this run's results: a run that died after its merge has not announced it.
        versions: dict[str, int] = document["tables"]
        source, ti = document["source"], context["ti"]
        # By a key with the source: a mapped task's index is another source's once there are more files. map_indexes
        # selects the newest value; without it xcom_pull returns all values.
        key = f"dblake_{source}"
        previous = ti.xcom_pull(task_ids=self.task_id, key=key, include_prior_dates=True, map_indexes=ti.map_index)
        ti.xcom_push(key=key, value=versions)
        events = context["outlet_events"][any_table(self.source)]
        for table, version in changed_tables(versions, previous).items():
            events.add(table_asset(source, table), extra={"table": table, "version": version})
            self.log.info("changed: %s, version %d", table, version)
        return versions
