"""Run ``spark-submit.sh`` under Airflow, with retries decided by exit codes.

Guarantee: a job that ended with 75 or was killed fails so that Airflow's retries apply; any other failure is final; a
job that Airflow stopped never counts as done. ``tasks`` builds the command lines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any, Literal

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dblake.base.core.outcome import Outcome, classify
from pipelines.airflow.assets import any_table, table_asset
from pipelines.airflow.tasks import SCRIPT, changed_tables

_STATUS_SECONDS = 900
"""For ``status``, which may have to make its environment first."""


class JobOperator(BashOperator):
    """A task that runs one job. ``bash_command`` is its command line; other arguments are BashOperator's."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._stopped = False

    def execute(self, context: Any) -> Any:
        """Run the command and return its last line of output."""
        bash = shutil.which("bash") or "bash"
        done = self.subprocess_hook.run_command(
            [bash, "-c", self.bash_command], env=self.get_env(context), cwd=self.cwd
        )
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
    """The job ``run``; after a success it announces the tables that changed since the last announcement."""

    def __init__(self, *, conf: str, source: str, **arguments: Any) -> None:
        super().__init__(outlets=[any_table(source)], **arguments)
        self.conf = conf
        self.source = source

    def execute(self, context: Any) -> dict[str, int]:
        """Run the job, announce changed tables and return every state table's version for the next comparison."""
        super().execute(context)
        document = read_status(self.conf, self.get_env(context))
        # Versions, not this run's results: a run that died after its merge has not announced it.
        versions: dict[str, int] = document["tables"]
        # map_indexes selects the newest value; without it xcom_pull returns all values.
        previous = context["ti"].xcom_pull(task_ids=self.task_id, include_prior_dates=True, map_indexes=-1)
        events = context["outlet_events"][any_table(self.source)]
        for table, version in changed_tables(versions, previous).items():
            events.add(table_asset(self.source, table), extra={"table": table, "version": version})
            self.log.info("changed: %s, version %d", table, version)
        return versions


class LagSensor(BaseSensorOperator):
    """Waits until a stage holds everything committed at the source up to ``seconds`` ago. Starts no JVM."""

    def __init__(
        self, *, conf: str, seconds: float, stage: Literal["landing", "events", "state"] = "state",
        env: Mapping[str, str] | None = None, **arguments: Any,
    ) -> None:
        # Between two pokes the slot is free for the jobs that the sensor waits for.
        super().__init__(**({"mode": "reschedule"} | arguments))
        self.conf = conf
        self.seconds = seconds
        self.stage = stage
        self.env = dict(env or {})

    def poke(self, context: Any) -> bool:  # noqa: ARG002
        """Return whether the stage's lag is at most ``seconds``."""
        try:
            lag = read_status(self.conf, os.environ | self.env)["stages"][self.stage]["lag_seconds"]
        except AirflowFailException:
            raise
        except AirflowException as error:
            self.log.warning("%s", error)
            return False
        self.log.info("%s: %s", self.stage, "empty" if lag is None else f"lag {lag} s")
        return lag is not None and lag <= self.seconds


def require_success(code: int) -> None:
    """Raise AirflowException for an exit code that is retried, AirflowFailException for one that is final."""
    outcome = classify(code)
    if outcome is Outcome.RETRY:
        raise AirflowException(f"exit code {code}: a retry may succeed")
    if outcome is Outcome.FAIL:
        raise AirflowFailException(f"exit code {code}: correct what the message above names")


def read_status(conf: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of ``status --json --offline``, which needs neither a JVM nor the database's password.

    ``env`` may hold credentials of the warehouse and of ZooKeeper.
    """
    try:
        done = subprocess.run(
            [str(SCRIPT), "status", "--conf", conf, "--json", "--offline"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, env=env, timeout=_STATUS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise AirflowException(f"{SCRIPT.name} status: no answer within {_STATUS_SECONDS} s") from None
    if done.returncode:
        last_line = " ".join(done.stderr.strip().splitlines()[-1:])
        try:
            require_success(done.returncode)
        except AirflowException as error:
            raise type(error)(f"{SCRIPT.name} status: {error}; {last_line}") from None
    document: dict[str, Any] = json.loads(done.stdout)
    return document
