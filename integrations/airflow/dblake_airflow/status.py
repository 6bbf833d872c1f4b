"""Read ``status`` as a command, and turn exit codes into Airflow's exceptions.

Guarantee: a code that a retry may change raises AirflowException, any other one AirflowFailException.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dblake.base.core.outcome import Outcome, classify
from dblake_airflow.tasks import COMMAND

_STATUS_SECONDS = 900
"""For ``status``, which may have to make its environment first."""


def require_success(code: int) -> None:
    """Raise AirflowException for an exit code that is retried, AirflowFailException for one that is final."""
    outcome = classify(code)
    if outcome is Outcome.RETRY:
        raise AirflowException(f"exit code {code}: a retry may succeed")
    if outcome is Outcome.FAIL:
        raise AirflowFailException(f"exit code {code}: correct what the message above names")


def read_status(conf: str, env: Mapping[str, str], command: str | None = None) -> dict[str, Any]:
    """Return the document of ``status --json --offline``, which needs neither a JVM nor the database's password.

    ``env`` may hold credentials of the warehouse and of ZooKeeper.
    """
    program = command or COMMAND
    try:
        done = subprocess.run(
            [program, "status", "--conf", conf, "--json", "--offline"], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, env=env, timeout=_STATUS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise AirflowException(f"{program} status: no answer within {_STATUS_SECONDS} s") from None
    except OSError as error:
        raise AirflowFailException(f"{program} cannot be run: {error.strerror}; correct `command`") from None
    if done.returncode:
        last_line = " ".join(done.stderr.strip().splitlines()[-1:])
        try:
            require_success(done.returncode)
        except AirflowException as error:
            raise type(error)(f"{program} status: {error}; {last_line}") from None
    document: dict[str, Any] = json.loads(done.stdout)
    return document
