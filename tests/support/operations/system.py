"""The jobs on an operated database: capture as a supervised process, events and state in this process, without a JVM.

An operator restarts capture when it ends, with ``--accept-gap`` if its message names that, and notes the exit code.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dblake.base.core.errors import DblakeError, ExitCode
from dblake.base.core.processes import end_with_parent
from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import find_table, has_table
from dblake.config import Config
from dblake.config.load import load_config
from dblake.ingest.capture.dump_queue import first_batch_of_imports, queue_dump
from dblake.ingest.capture.dump_task import DumpControl
from dblake.ingest.capture.progress import open_progress
from dblake.ingest.capture.stale_tables import set_dump
from dblake.ingest.capture.throttle import Throttle, set_throttle
from dblake.ingest.imports.spec import ImportFiles
from dblake.landing.table import Landing
from dblake.operate.cycle.run import Cycle, CycleResult
from dblake.operate.maintenance.event_compaction import compact_events
from dblake.operate.maintenance.run import Maintenance
from dblake.transform.spark.session import Session, session_of
from jobs.maintain import first_needed
from pipelines.dump import read_dumps, start_import, steer
from pipelines.status import read_status
from tests.support.operations.databases import SCHEMA, CapturedDatabase
from tests.support.rig import HOME, Job, kill

STOP_SECONDS = 10.0
"""How long capture may take to end after SIGTERM."""
_HANDLER_SECONDS = 3.0
_START_SECONDS = 30.0
_TAIL = 1500
_NOT_YET = ("later than what capture has landed", "capture has landed no log", "of it is not finished")
"""Words of an import that is rejected until capture has landed more."""


class LiveSystem:
    """One source with its warehouse, progress and capture process in a folder."""

    def __init__(
        self, database: CapturedDatabase, folder: Path, *, patterns: Sequence[str] = (f"{SCHEMA}.*",),
        **capture: float,
    ) -> None:
        """``capture`` are further settings of capture."""
        self.database, self._folder, self._patterns = database, folder, tuple(patterns)
        self._capture = capture
        self.ends: Counter[int] = Counter()
        """How often capture has ended without being killed or stopped, by exit code; ``take_ends`` empties it."""
        self._process: Job | None = None
        self._started_at = 0.0
        self.last_words = ""
        """The last line of the capture that ended last."""
        self._log = folder / "capture.log"
        self._log_from = self._files = 0
        self.environment = os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": database.password}
        os.environ["SHOP_PASSWORD"] = database.password
        self.configure()

    def configure(self, *excluded: str) -> None:
        """Write the configuration, without some tables; a running capture keeps its own."""
        self.conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "source": {"name": "shop", "password": "${env:SHOP_PASSWORD}", **self.database.settings(),
                       "tables": [*self._patterns, *(f"!{SCHEMA}.{table}" for table in excluded)]},
            "capture": {"heartbeat_seconds": 0.5, "commits_per_second": 10.0, **self._capture},
            "dump": {"chunk_size": 25, "delay": 0.02},
            # A run of this process starts no JVM for them.
            "run": {"check_seconds": None, "maintain_seconds": None},
        }), encoding="utf-8")

    @property
    def config(self) -> Config:
        """Return the configuration as it is now."""
        return load_config(self.conf)

    @property
    def paths(self) -> Paths:
        """Return the paths of the source's tables."""
        return Paths(str(self._folder / "warehouse"), "shop")

    def start_capture(self, *arguments: str) -> None:
        """Start capture, if it does not run."""
        if self._process is None:
            self._log_from = self._log.stat().st_size if self._log.exists() else 0
            self._process, self._started_at = self._start("capture", *arguments), time.monotonic()

    def kill_capture(self) -> None:
        """Kill capture."""
        if self._process:
            kill(self._process)
            self._process = None

    def stop_capture(self) -> str:
        """Stop capture by SIGTERM; return what is wrong with its end, or an empty text."""
        process, self._process = self._process, None
        if process is None:
            return ""
        if (code := process.poll()) is not None:
            self._note_end(code)
            return ""
        # Before Python has installed capture's handler, the signal ends the process as it ends any.
        accepted = (0, -signal.SIGTERM) if time.monotonic() - self._started_at < _HANDLER_SECONDS else (0,)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill(process)
            return f"capture did not end within {STOP_SECONDS:.0f} s"
        return "" if code in accepted else f"capture ended with {code} after SIGTERM: {self.capture_errors()}"

    def supervise(self) -> None:
        """Start capture again if it has ended."""
        if self._process and (code := self._process.poll()) is not None:
            self._process = None
            self._note_end(code)
            arguments = ["--accept-gap"] if "--accept-gap" in self.capture_errors() else []
            time.sleep(0.3)
            self.start_capture(*arguments)

    def wait(self, seconds: float) -> None:
        """Supervise capture for some time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.supervise()
            time.sleep(0.1)

    def await_heartbeat(self) -> str:
        """Wait until a heartbeat of now has landed; return what is wrong if none does, or an empty text."""
        landing = Landing(self.paths.landing, "shop")
        before = landing.reached.heartbeat if landing.reached else ""
        deadline = time.monotonic() + _START_SECONDS
        while (reached := Landing(self.paths.landing, "shop").reached) is None or reached.heartbeat == before:
            if time.monotonic() > deadline:
                return f"no heartbeat has landed within {_START_SECONDS:.0f} s"
            self.wait(0.2)
        return ""

    def await_end(self, code: int) -> str:
        """Wait until capture has ended with a code; return what is wrong if it does not, or an empty text."""
        deadline = time.monotonic() + _START_SECONDS
        while not self.ends[code]:
            if time.monotonic() > deadline:
                return f"capture did not end with {code} within {_START_SECONDS:.0f} s"
            self.wait(0.2)
        return ""

    def require_rejected(self) -> str:
        """Run capture, which is stopped, once; return what is wrong if it is not rejected for a gap."""
        self.start_capture()
        process, self._process = self._process, None
        assert process is not None
        try:
            code = process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            kill(process)
            return f"capture did not end within {_START_SECONDS:.0f} s, although the server went back"
        is_gap = code == ExitCode.CONFIGURATION and "a gap" in self.capture_errors()
        return "" if is_gap else f"the server went back, but capture ended with {code}: {self.capture_errors()}"

    def take_ends(self) -> dict[int, int]:
        """Return how often capture has ended on its own since the last call, by exit code."""
        ends, self.ends = dict(self.ends), Counter()
        return ends

    def capture_errors(self) -> str:
        """Return the last lines that the newest capture has logged."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")[-_TAIL:]

    def kill_run(self, seconds: float) -> None:
        """Start ``run``, and kill it after some seconds, unless it has ended."""
        process = self._start("run")
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        kill(process)

    def dump(self, tables: Sequence[str], keys: Sequence[tuple[str, ...]] | None = None) -> None:
        """Queue a dump, as the command does."""
        store, names = open_progress(self.config.progress, "shop"), [f"{SCHEMA}.{table}" for table in tables]
        queued = queue_dump(store, names, keys)
        if keys is None:
            set_dump(store, names, queued)

    def start_import(self, table: str, files: ImportFiles) -> tuple[str, str]:
        """Queue the import of files as the command does; return its id, or no id and why it is rejected.

        Waits until the position of the files has landed.
        """
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                queued, _ = start_import(self.config, f"{SCHEMA}.{table}", files, replaces=True, removes=True)
            except DblakeError as error:
                if not any(words in error.what for words in _NOT_YET) or time.monotonic() > deadline:
                    return "", error.what
                self.wait(0.5)
            else:
                return queued.id, ""

    def steer(self, control: DumpControl, dump_id: str) -> None:
        """Pause or resume a dump, as the command does."""
        steer(self.config, control, dump_id, None)

    def throttle(self, limits: Throttle) -> None:
        """Set the limits of dumps; those of ``Throttle()`` are the configuration's."""
        set_throttle(open_progress(self.config.progress, "shop"), limits)

    def dumps(self, table: str) -> dict[str, dict[str, Any]]:
        """Return the dumps of a table by their ids, which sort by time."""
        return {one["id"]: one for one in read_dumps(self.config) if one["table"] == f"{SCHEMA}.{table}"}

    def expire_landing(self) -> None:
        """Maintain landing as the job does, with a retention that is over at once."""
        config = self.config
        settings = config.maintain.model_copy(update={"landing_days": 0})
        Maintenance(self._session(), self.paths, settings, partial(first_needed, config)).tasks()["landing"]()

    def compact_events(self) -> int:
        """Compact events as maintenance does, however few files they have; return how many were merged."""
        return compact_events(self.paths.events)

    def oldest_batch(self) -> int:
        """Return the oldest batch in landing."""
        return int(query_rows(self.paths.landing, "SELECT min(batch) AS oldest FROM t")[0]["oldest"])

    def first_needed(self) -> int | None:
        """Return the oldest batch that an unfinished import needs."""
        return first_batch_of_imports(open_progress(self.config.progress, "shop"))

    @property
    def incarnation(self) -> int:
        """The incarnation of the log that has landed last."""
        reached = Landing(self.paths.landing, "shop").reached
        return reached.resume.incarnation if reached else 0

    def new_file(self) -> Path:
        """Return the path of a file that does not exist."""
        self._files += 1
        return self._folder / f"rows-{self._files}"

    def advance(self) -> str:
        """Reconcile and fold what has landed; return the error of a retryable failure, or an empty text.

        Tables whose state is left behind are for ``status`` to name. Raises other errors.
        """
        if not has_table(self.paths.landing):
            return "nothing has landed"
        cycle = Cycle(self.config, self._session(), partial(first_needed, self.config))
        try:
            cycle.reconcile(CycleResult())
            cycle.fold(CycleResult())
        except DblakeError as error:
            if not error.retryable:
                raise
            return str(error)
        return ""

    def _session(self) -> Session:
        return session_of("operations", self.paths.warehouse, is_short=lambda: True)

    def status(self) -> dict[str, Any]:
        """Return the document of ``status --json``."""
        return read_status(self.config)

    def state_rows(self, table: str) -> list[dict[str, Any]] | None:
        """Return the rows of a state table, None if there is none."""
        found = find_table(self.paths.state(SCHEMA, table))
        if found is None:
            return None
        rows: list[dict[str, Any]] = found.to_pyarrow_table().to_pylist()
        return [row for row in rows if not row["_deleted"]]

    def close(self) -> None:
        """Kill capture."""
        self.kill_capture()

    @property
    def conf(self) -> Path:
        """Return the path of the configuration file."""
        return self._folder / "shop.yaml"

    def _start(self, job: str, *arguments: str) -> Job:
        with (self._folder / f"{job}.log").open("ab") as log:
            return subprocess.Popen(
                [*end_with_parent(signal.SIGKILL), sys.executable, str(HOME / f"jobs/{job}.py"), "--conf",
                 str(self.conf), *arguments],
                env=self.environment, stdout=log, stderr=log, text=True, start_new_session=True,
            )

    def _note_end(self, code: int) -> None:
        self.ends[code] += 1
        self.last_words = self.capture_errors().strip().rpartition("\n")[2]
