"""A log that another server continues: what lands first, what becomes of a dump under way, and who is rejected."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from dblake.base.core.errors import DivergedServer
from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ServerIdentity
from dblake.ingest.capture.loop import Until
from dblake.ingest.source.memory.source import MemorySource
from tests.conformance.script import Script, event_lines
from tests.support.backends import MemoryBackend
from tests.support.lake import CaptureLake

T = "public.t"


class Twin(MemorySource):
    """A source whose server may be replaced by one with the same log; ``refusal`` is why it is rejected."""

    refusal: DivergedServer | None = None

    def find_continuation(self, known: ServerIdentity, resume: ResumePoint) -> ResumePoint | None:
        assert known.server == "memory"
        if self.refusal:
            raise self.refusal
        return ResumePoint(resume.incarnation + 1, resume.token)


@pytest.fixture
def backend() -> MemoryBackend:
    backend = MemoryBackend()
    backend.create(TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"))))
    Script(backend, T).run([f"insert {key} a" for key in range(1, 6)])
    backend.database.make_slot("shop")
    return backend


def test_move_continues_log_and_dump(backend: MemoryBackend, tmp_path: Path) -> None:
    """The dump was cut off after its first chunk; its next one is read on the other server."""
    lake, source = CaptureLake(tmp_path), Twin(backend.database, name="shop", patterns=["public.*"])
    lake.dump(T)
    stop = threading.Event()
    lake.capture(source, chunk_size=2, stop=stop, until=Until(), steps={("high", T): stop.set})
    assert [dump["state"] for dump in lake.dumps()] == ["running"]
    backend.database.server = "twin"
    Script(backend, T).run(["update 1 b", "delete 2", "insert 6 a"])
    lake.capture(source, chunk_size=2)
    rows = [row for row in lake.landing().to_pylist() if row["incarnation"] == 2]
    (mark,) = [row for row in rows if row["kind"] == "moved"]
    assert (mark["table"], mark["lsn"], mark["seq"]) == (None, None, None)
    assert json.loads(mark["payload"]) == {"continues": 1, "server": "twin"}
    assert mark["batch"] == min(row["batch"] for row in rows)
    events, ledger = lake.reconciled()
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
    assert {line for line in event_lines(events, T) if line[0] != "r"} == {"u 1 b", "d 2", "c 6 a"}
    assert [(line.status, line.reason) for line in ledger if line.chunk_id == ""] == [
        ("moved", "server twin continues the log of incarnation 1")
    ]
    assert [dump["state"] for dump in lake.dumps()] == ["done"]
    assert lake.reached.resume.incarnation == 2 and lake.reached.server.server == "twin"


def test_diverged_server_stays_rejected_until_accepted(backend: MemoryBackend, tmp_path: Path) -> None:
    lake, source = CaptureLake(tmp_path), Twin(backend.database, name="shop", patterns=["public.*"])
    lake.dump(T)
    lake.capture(source)
    before = lake.reached
    backend.database.server = "twin"
    source.refusal = DivergedServer("source shop: the server that answers has 1 transaction among those: 0-1-7")
    for _ in range(2):
        with pytest.raises(DivergedServer, match=r"server that answers has 1 transaction among those: 0-1-7"):
            lake.capture(source)
        source.refusal = None  # whatever the server shows later
    assert lake.reached == before
    backend.database.server = "memory"
    lake.capture(source)
    assert lake.reached.resume.incarnation == 1, "the right server is not rejected"
    backend.database.server = "twin"
    lake.capture(source, accept_gap=True)
    assert [line.status for line in lake.reconciled()[1] if line.chunk_id == ""] == ["gap"]
    assert lake.state(T) == {(row["id"],): row for row in backend.rows(T)}
