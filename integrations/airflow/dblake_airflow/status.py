"""Read ``status`` as a command, and turn exit codes into Airflow's exceptions.

Guarantee: a code that a retry may change raises AirflowException, any other one AirflowFailException.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dblake.base.core.outcome import Outcome, classify
from dblake_airflow.tasks import COMMAND

_STATUS_SECONDS = 900
"""For ``status``, which may have to make its environment first."""
_TRIGGER_SECONDS = 120
"""In the triggerer: the sensor has run ``status`` before."""


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
    arguments = _status_command(conf, command)
    try:
        done = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=env, timeout=_STATUS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _no_answer(arguments[0], _STATUS_SECONDS) from None
    except OSError as error:
        raise _cannot_run(arguments[0], error) from None
    return _document(arguments[0], done.returncode, done.stdout, done.stderr)


async def await_status(conf: str, env: Mapping[str, str], command: str | None = None) -> dict[str, Any]:
    """Return what ``read_status`` returns, within a shorter time; a cancellation ends the command with its children."""
    arguments = _status_command(conf, command)
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_run(arguments[0], error) from None
    try:
        async with asyncio.timeout(_TRIGGER_SECONDS):
            printed, messages = await process.communicate()
    except TimeoutError:
        raise _no_answer(arguments[0], _TRIGGER_SECONDS) from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return _document(arguments[0], process.returncode or 0, printed, messages)


def _status_command(conf: str, command: str | None) -> list[str]:
    return [command or COMMAND, "status", "--conf", conf, "--json", "--offline"]


def _no_answer(program: str, seconds: int) -> AirflowException:
    return AirflowException(f"{program} status: no answer within {seconds} s")


def _cannot_run(program: str, error: OSError) -> AirflowFailException:
    return AirflowFailException(f"{program} cannot be run: {error.strerror}; correct `command`")


def _document(program: str, code: int, printed: bytes, messages: bytes) -> dict[str, Any]:
    """Return the document that ``status`` printed. Raises by its exit code."""
    if code:
        last_line = " ".join(messages.decode(errors="replace").strip().splitlines()[-1:])
        try:
            require_success(code)
        except AirflowException as error:
            raise type(error)(f"{program} status: {error}; {last_line}") from None
    document: dict[str, Any] = json.loads(printed)
    return document
