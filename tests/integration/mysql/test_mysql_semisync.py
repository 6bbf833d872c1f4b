"""A commit that is in the log before it is visible: the source waits for a replica that never acknowledges.

With the wait point AFTER_SYNC a transaction is written to the binlog and sent to all readers, and stays invisible
until a semi-synchronous replica has it. A dump across such a stall must not lose the change: its watermark is behind
the change in the log, so it must be behind it in visibility, too. That is what ``binlog_order_commits`` gives, without
which preflight refuses the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import Source
from tests.support.lake import CaptureLake
from tests.support.mysql import Flavour, MysqlServer
from tests.support.mysql_backend import MysqlBackend

T = "public.t"
_OPTIONS = {
    "mariadb": ("--rpl-semi-sync-master-wait-point=AFTER_SYNC",),
    "mysql": ("--plugin-load-add=semisync_source.so",),
}
_WORDS = {"mariadb": ("master", "slave"), "mysql": ("source", "replica")}


class Stalling:
    """A server that can be made to hold up every commit between its log and everybody's eyes."""

    def __init__(self, server: MysqlServer) -> None:
        self.server = server
        self._word, other = _WORDS[server.flavour]
        self._set("wait_point", "'AFTER_SYNC'")
        self._set("timeout", "3600000")
        self._set(f"wait_no_{other}", "ON")
        self._stalled: threading.Thread | None = None
        self.backend = MysqlBackend(server)

    def _set(self, variable: str, value: str) -> None:
        self.server.run(f"SET GLOBAL rpl_semi_sync_{self._word}_{variable} = {value}")

    def stall(self) -> None:
        """Change row 3; the change reaches the log only."""
        self._set("enabled", "ON")
        self._stalled = threading.Thread(target=self.server.run, args=("UPDATE public.t SET v = 'new' WHERE id = 3",))
        with closing(self.backend.other_slot().open_log(None, 1)) as stream:
            self._stalled.start()
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=0.1)
                if piece and "row" in piece.rows["kind"].to_pylist():
                    break
            else:
                raise AssertionError("the change has not come in the log")
        self.require_stalled()

    def require_stalled(self) -> None:
        """Require that the logged change's session still waits and that no session sees the change."""
        assert self._stalled
        self._stalled.join(0.3)
        assert self._stalled.is_alive()
        assert self.value() == "old"

    def value(self) -> str:
        return str(self.server.rows("SELECT v FROM public.t WHERE id = 3")[0][0])

    def release(self) -> None:
        """Lets all commits come to light."""
        self._set("enabled", "OFF")
        if self._stalled:
            self._stalled.join(20)
            assert not self._stalled.is_alive()


@pytest.fixture(params=["mariadb", "mysql"])
def stalling(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stalling]:
    flavour: Flavour = request.param
    with MysqlServer(flavour, tmp_path / "server", *_OPTIONS[flavour]) as server:
        stalling = Stalling(server)
        yield stalling
        stalling.release()


@pytest.fixture
def source(stalling: Stalling) -> Source:
    backend = stalling.backend
    backend.create(TableSchema(T, (Column("id", "int", False, 1), Column("v", "text"))))
    stalling.server.run("INSERT INTO public.t VALUES (1, 'old'), (2, 'old'), (3, 'old'), (4, 'old'), (5, 'old')")
    return backend.source("public.*")


RIGHT = {(str(n),): {"id": str(n), "v": "new" if n == 3 else "old"} for n in range(1, 6)}


def test_semisync_stall_delays_low_watermark(
    stalling: Stalling, source: Source, tmp_path: Path
) -> None:
    lake = CaptureLake(tmp_path)
    stalling.stall()
    lake.dump(T)
    seen: list[str] = []
    capture = threading.Thread(
        target=lake.capture, args=(source,), kwargs={"steps": {("low", T): lambda: seen.append(stalling.value())}}
    )
    capture.start()
    capture.join(2)
    stalling.require_stalled()
    # The low watermark is being written, and cannot be done before the change that is in the log before it.
    assert capture.is_alive() and seen == []
    assert any(str(row[0]).endswith("WHERE id = 1") for row in stalling.server.rows(
        "SELECT info FROM information_schema.processlist WHERE user = 'cap' AND info IS NOT NULL"
    ))
    stalling.release()
    capture.join(60)
    assert not capture.is_alive()
    assert seen == ["new"]
    assert lake.state(T) == RIGHT


def test_semisync_stalled_update_evicts_chunk_row(
    stalling: Stalling, source: Source, tmp_path: Path
) -> None:
    lake = CaptureLake(tmp_path)
    lake.dump(T)

    def release_soon() -> None:
        # The read is done; the high watermark waits for this.
        stalling.require_stalled()
        threading.Timer(0.5, stalling.release).start()

    lake.capture(source, steps={
        ("low", T): stalling.stall,
        ("read", T): release_soon,
    })
    events, (window, end) = lake.reconciled()
    assert [(event.op, event.key) for event in events] == [
        ("u", ("3",)), ("r", ("1",)), ("r", ("2",)), ("r", ("4",)), ("r", ("5",)),
    ]
    assert (window.status, window.emitted) == ("closed", 4)
    assert (end.status, end.emitted) == ("closed", 0)
    assert lake.state(T) == RIGHT
