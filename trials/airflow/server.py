"""Run an Airflow for the duration of a trial: scheduler, DAG processor and API server in one folder.

Guarantee: it listens on 127.0.0.1 only, requires a password, and ends with its block. Its metadata database is SQLite,
which suits trials only. ``spark-submit.sh`` installs Airflow's environment; this module imports nothing of Airflow.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dblake.base.core.errors import DblakeError
from dblake.base.core.processes import end_with_parent, stop_process
from dblake.ingest.source.postgres.ports import free_port

_START_SECONDS = 120
_STOP_SECONDS = 20
_COMMAND_SECONDS = 1200
"""``dags test`` runs all jobs of a DAG."""
_POLL_SECONDS = 1.0
_COMPONENTS = {"api-server": (), "dag-processor": (), "scheduler": ("--skip-serve-logs",)}

_Result = TypeVar("_Result")


class Airflow:
    """An Airflow in a dedicated folder; a context manager. DAG files go to ``dags`` before it starts."""

    def __init__(self, venv: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.dags = folder / "dags"
        self.dags.mkdir(parents=True)
        self._program = venv / "bin" / "airflow"
        self._password = secrets.token_urlsafe(24)
        self._port = free_port()
        # Without our PYTHONPATH: DAG files add the checkout themselves, as a user's do.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._environment = {**inherited, **self._settings(), **environment}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""

    def __enter__(self) -> Airflow:
        passwords = self.folder / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({"admin": self._password}), encoding="utf-8")
        try:
            self.command("db", "migrate")
            for name, options in _COMPONENTS.items():
                self._start(name, *options)
            self._token = self.wait(self._log_in, _START_SECONDS, "Airflow's API server")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def command(self, *arguments: str) -> None:
        """Run ``airflow …`` with its output in a log file. Raises DblakeError if it fails."""
        log = self.folder / f"{'-'.join(arguments[:2])}.log"
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [*end_with_parent(), str(self._program), *arguments], env=self._environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )
        try:
            code = process.wait(_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise DblakeError(f"airflow {' '.join(arguments[:2])} did not end within {_COMMAND_SECONDS} s",
                              next_step=f"read {log}") from None
        finally:
            if process.returncode is None:
                stop_process(process, _STOP_SECONDS, group=True)
        if code:
            raise DblakeError(f"airflow {' '.join(arguments[:2])} ended with {code}",
                              next_step=f"read {log}")

    def stop_scheduler(self) -> None:
        """Stop the scheduler with its workers; the API server answers as before."""
        stop_process(self._processes.pop("scheduler"), _STOP_SECONDS, group=True)

    def request(self, path: str, body: Mapping[str, Any] | None = None, method: str = "") -> Any:
        """Return the REST API's JSON response; with a body the default method is POST."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, headers, method=method or ("GET" if body is None else "POST")
        )
        # Bypass any proxy that the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            return json.load(response)

    def unpause(self, dag: str, seconds: float) -> None:
        """Unpause a DAG as soon as Airflow has parsed it."""

        def unpause_once() -> bool:
            with suppress(urllib.error.HTTPError):
                self.request(f"/api/v2/dags/{dag}", {"is_paused": False}, "PATCH")
                return True
            return False

        self.wait(unpause_once, seconds, f"the DAG {dag} to be parsed")

    def trigger(self, dag: str, **params: Any) -> None:
        """Start a run."""
        self.request(f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": params})

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return all runs of a DAG."""
        runs: list[dict[str, Any]] = self.request(f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        return runs

    def wait_for_run(self, dag: str, seconds: float) -> dict[str, Any]:
        """Wait until the only run of a DAG has ended and return it."""

        def ended_run() -> dict[str, Any] | None:
            runs = self.runs(dag)
            return runs[0] if len(runs) == 1 and runs[0]["state"] in ("success", "failed") else None

        return self.wait(ended_run, seconds, f"the DAG {dag} to end")

    def tasks(self, run: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tasks of a run in the order of their start."""
        path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances"
        return sorted(self.request(path)["task_instances"], key=lambda task: task["start_date"] or "~")

    def wait(self, poll: Callable[[], _Result | None], seconds: float, what: str) -> _Result:
        """Call ``poll`` until it returns a true value, and return that; connection errors count as not yet.

        Raises DblakeError after ``seconds``, or if a component of Airflow has ended.
        """

        def poll_once() -> _Result | None:
            try:
                return poll()
            except urllib.error.HTTPError:
                raise
            except OSError:
                return None

        deadline = time.monotonic() + seconds
        while not (result := poll_once()):
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                reason = f"{dead[0]} has ended" if dead else f"no result after {seconds:.0f} s"
                raise DblakeError(
                    f"timed out waiting for {what}: {reason}", next_step=f"read the logs in {self.folder}"
                )
            time.sleep(_POLL_SECONDS)
        return result

    def _settings(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self._port}"
        sections: dict[str, dict[str, Any]] = {
            "core": {
                "dags_folder": self.dags, "load_examples": False, "parallelism": 4,
                "execution_api_server_url": f"{url}/execution/",
                "simple_auth_manager_users": "admin:admin",
                "simple_auth_manager_passwords_file": self.folder / "passwords.json",
            },
            "api": {"host": "127.0.0.1", "port": self._port, "base_url": url, "workers": 1},
            "api_auth": {"jwt_secret": secrets.token_urlsafe(32)},
            "database": {"sql_alchemy_conn": f"sqlite:///{self.folder}/airflow.db"},
            "usage_data_collection": {"enabled": False},
        }
        variables = {
            f"AIRFLOW__{section.upper()}__{key.upper()}": str(value)
            for section, keys in sections.items() for key, value in keys.items()
        }
        return {"AIRFLOW_HOME": str(self.folder), **variables}

    def _start(self, name: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*end_with_parent(), str(self._program), name, *options], env=self._environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )

    def _log_in(self) -> str:
        return str(self.request("/auth/token", {"username": "admin", "password": self._password})["access_token"])

    def _stop(self) -> None:
        # The scheduler first, together with its workers: on its own it would wait for their tasks.
        for process in reversed(self._processes.values()):
            stop_process(process, _STOP_SECONDS, group=True)
        self._processes.clear()
