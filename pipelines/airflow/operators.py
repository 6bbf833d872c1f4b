"""Runs lines of ``spark-submit.sh`` under Airflow, so that their exit codes decide what is tried again.

Promise: what ended with 75, or was killed, fails so that Airflow's retries apply; any other failure is final at once;
nothing that was stopped half-way counts as done. The lines themselves are made in ``tasks``.
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

from pipelines.airflow.assets import any_table, table_asset
from pipelines.airflow.tasks import SCRIPT, Verdict, changed, verdict

_STATUS_SECONDS = 900
"""For ``status``, which may have to make its environment first."""


class JobOperator(BashOperator):
    """One job. ``bash_command`` is its line; what else BashOperator takes (``env``, ``append_env``) it takes, too."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._stopped = False

    def execute(self, context: Any) -> Any:
        """Runs the line; its last line of output is the result."""
        bash = shutil.which("bash") or "bash"
        done = self.subprocess_hook.run_command(
            [bash, "-c", self.bash_command], env=self.get_env(context), cwd=self.cwd
        )
        if self._stopped:
            # The job ended with 0, as always when it is asked to stop, and Airflow would take that for success.
            raise AirflowException("stopped before its end")
        judge(done.exit_code)
        return done.output

    def on_kill(self) -> None:
        """Asks the job to stop, which it does at a safe place."""
        self._stopped = True
        super().on_kill()


class StateOperator(JobOperator):
    """The state job, which then announces the tables that have changed since it last did."""

    def __init__(self, *, conf: str, source: str, **arguments: Any) -> None:
        super().__init__(outlets=[any_table(source)], **arguments)
        self.conf = conf
        self.source = source

    def execute(self, context: Any) -> dict[str, int]:
        """Returns the version of every table's state, which is what the next run compares with."""
        super().execute(context)
        document = read_status(self.conf, self.get_env(context))
        # Versions, not what this run did: tables may have been merged by one that died before it could tell.
        now: dict[str, int] = document["tables"]
        # With map_indexes it is the newest one, without it all there are.
        before = context["ti"].xcom_pull(task_ids=self.task_id, include_prior_dates=True, map_indexes=-1)
        announced = context["outlet_events"][any_table(self.source)]
        for table, version in changed(now, before).items():
            announced.add(table_asset(self.source, table), extra={"table": table, "version": version})
            self.log.info("changed: %s, version %d", table, version)
        return now


class LagSensor(BaseSensorOperator):
    """Waits until a stage holds all that was committed at the source up to ``seconds`` ago. Starts no JVM."""

    def __init__(
        self, *, conf: str, seconds: float, stage: Literal["landing", "events", "state"] = "state",
        env: Mapping[str, str] | None = None, **arguments: Any,
    ) -> None:
        # Between two looks its slot is free for the jobs it waits for.
        super().__init__(**({"mode": "reschedule"} | arguments))
        self.conf = conf
        self.seconds = seconds
        self.stage = stage
        self.env = dict(env or {})

    def poke(self, context: Any) -> bool:  # noqa: ARG002
        """True once the lag is small enough."""
        try:
            lag = read_status(self.conf, os.environ | self.env)["stages"][self.stage]["lag_seconds"]
        except AirflowFailException:
            raise
        except AirflowException as passing:
            self.log.warning("%s", passing)
            return False
        self.log.info("%s: %s", self.stage, "nothing yet" if lag is None else f"{lag} s behind now")
        return lag is not None and lag <= self.seconds


def judge(code: int) -> None:
    """Raises what Airflow tries again, or does not; nothing if the job is done."""
    decision = verdict(code)
    if decision is Verdict.AGAIN:
        raise AirflowException(f"exit code {code}: trying again may help")
    if decision is Verdict.GIVE_UP:
        raise AirflowFailException(f"exit code {code}: somebody has to mend what the message above names")


def read_status(conf: str, env: Mapping[str, str]) -> dict[str, Any]:
    """What ``status --json`` says of the tables: without a JVM, and without the database's password.

    ``env`` may hold what reaches the warehouse, and ZooKeeper's passwords.
    """
    try:
        done = subprocess.run(
            [str(SCRIPT), "status", "--conf", conf, "--json", "--offline"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, env=env, timeout=_STATUS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise AirflowException(f"{SCRIPT.name} status: no answer within {_STATUS_SECONDS} s") from None
    if done.returncode:
        said = " ".join(done.stderr.strip().splitlines()[-1:])
        try:
            judge(done.returncode)
        except AirflowException as error:
            raise type(error)(f"{SCRIPT.name} status: {error}; {said}") from None
    document: dict[str, Any] = json.loads(done.stdout)
    return document
