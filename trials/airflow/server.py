"""An Airflow of our own for the length of a trial: scheduler, DAG processor and API server over one folder.

Its environment is made by ``spark-submit.sh``; nothing of Airflow is imported here. Promise: it listens on 127.0.0.1
only and with a password, and it ends with the block it is used in. It keeps its notes in SQLite, which is for trials.
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

from dblake.core.errors import DblakeError
from dblake.core.processes import end_with_parent, stop_process
from dblake.source.postgres.ports import free_port

_START_SECONDS = 120
_STOP_SECONDS = 20
_COMMAND_SECONDS = 1200
"""``dags test`` runs all jobs of a DAG."""
_LOOK_SECONDS = 1.0
_COMPONENTS = {"api-server": (), "dag-processor": (), "scheduler": ("--skip-serve-logs",)}

_Found = TypeVar("_Found")


class Airflow:
    """One Airflow. ``folder`` is its own; DAG files go to ``folder/dags`` before it starts. A context manager."""

    def __init__(self, venv: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.dags = folder / "dags"
        self.dags.mkdir(parents=True)
        self._program = venv / "bin" / "airflow"
        self._password = secrets.token_urlsafe(24)
        self._port = free_port()
        # Without our PYTHONPATH: DAG files name the checkout themselves, as a user's do.
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
            self._token = self.wait(self._log_in, _START_SECONDS, "Airflow's API server to answer")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def command(self, *arguments: str) -> None:
        """Runs ``airflow …`` to its end, which must be a good one; what it says is in a log file."""
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

    def ask(self, path: str, body: Mapping[str, Any] | None = None, method: str = "") -> Any:
        """What the REST API answers."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, headers, method=method or ("GET" if body is None else "POST")
        )
        # Not through a proxy that the environment may name.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)

    def unpause(self, dag: str, seconds: float) -> None:
        """Waits until a DAG is known and lets it run."""

        def let() -> bool:
            with suppress(urllib.error.HTTPError):
                self.ask(f"/api/v2/dags/{dag}", {"is_paused": False}, "PATCH")
                return True
            return False

        self.wait(let, seconds, f"the DAG {dag} to be read")

    def trigger(self, dag: str, **params: Any) -> None:
        """Starts a run."""
        self.ask(f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": params})

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """All runs of a DAG."""
        found: list[dict[str, Any]] = self.ask(f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        return found

    def ended(self, dag: str, seconds: float) -> dict[str, Any]:
        """The only run of a DAG, once it is there and has ended."""

        def only() -> dict[str, Any] | None:
            runs = self.runs(dag)
            return runs[0] if len(runs) == 1 and runs[0]["state"] in ("success", "failed") else None

        return self.wait(only, seconds, f"the DAG {dag} to end")

    def tasks(self, run: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The tasks of a run, in the order in which they began."""
        found = self.ask(f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances")["task_instances"]
        return sorted(found, key=lambda task: task["start_date"] or "~")

    def wait(self, look: Callable[[], _Found | None], seconds: float, what: str) -> _Found:
        """What ``look`` finds, as soon as it finds anything; an API server that does not answer yet is asked again."""

        def once() -> _Found | None:
            try:
                return look()
            except urllib.error.HTTPError:
                raise
            except OSError:
                return None

        deadline = time.monotonic() + seconds
        while not (found := once()):
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                why = f"its {dead[0]} has ended" if dead else f"it took more than {seconds:.0f} s"
                raise DblakeError(f"waited in vain for {what}: {why}", next_step=f"read the logs in {self.folder}")
            time.sleep(_LOOK_SECONDS)
        return found

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
        made = {
            f"AIRFLOW__{section.upper()}__{key.upper()}": str(value)
            for section, keys in sections.items() for key, value in keys.items()
        }
        return {"AIRFLOW_HOME": str(self.folder), **made}

    def _start(self, name: str, *options: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*end_with_parent(), str(self._program), name, *options], env=self._environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )

    def _log_in(self) -> str:
        return str(self.ask("/auth/token", {"username": "admin", "password": self._password})["access_token"])

    def _stop(self) -> None:
        # The scheduler first, and its workers with it: alone it would wait for their tasks, which stop their jobs.
        for process in reversed(self._processes.values()):
            stop_process(process, _STOP_SECONDS, group=True)
        self._processes.clear()
