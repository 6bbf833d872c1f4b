"""Delivery to an output: checkpoints, retries, dead letters, restarts; and the files of jsonl."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.parquet import ParquetFile

from dblake.base.core.errors import (
    ConfigError,
    DblakeError,
    EventRejected,
    Fenced,
    OutputUnavailable,
    ProgressUnavailable,
)
from dblake.base.core.position import Position
from dblake.base.lake.log import Application, record_batch
from dblake.base.lake.query import query_rows
from dblake.serve.consume import event_table
from dblake.serve.consume.documents import FileDocuments
from dblake.serve.consume.file_checkpoint import FileCheckpoint
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import Transaction
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs import run
from dblake.serve.outputs.delivery import Delivery, DeliverySettings
from dblake.serve.outputs.held_store import HeldStore
from dblake.serve.outputs.jsonl import JsonlOutput
from dblake.serve.outputs.metrics import MetricsFile
from dblake.serve.outputs.native import NativeFormat
from dblake.serve.outputs.protocol import Output, OutputContext
from dblake.serve.outputs.registry import make_format, make_output
from dblake.serve.outputs.reporter import OutputReporter, ReportPlaces
from dblake.serve.outputs.stdout import StdoutOutput
from dblake.serve.outputs.target import ConfiguredOutput, Group
from dblake.transform.events import reader
from dblake.transform.events.file_reader import open_event_file
from tests.support.consumers import Shop, describe, folded_shop
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

CONTEXT = OutputContext("archive", ["shop"], NativeFormat())
HOW = DeliverySettings("archive", max_events=7, retry_seconds=5, max_dead_letters=2)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return folded_shop(tmp_path_factory.mktemp("shop"), 5, later=6)


class Faulty:
    """Keeps what it is given; ``fault`` may raise first, given the number of the call."""

    def __init__(self, fault: Callable[[int, Sequence[Transaction]], None] = lambda *_: None) -> None:
        self.written: list[Transaction] = []
        self.opened = self.calls = 0
        self._fault = fault

    def open(self) -> str | None:
        self.opened += 1
        return None

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        self.calls += 1
        self._fault(self.calls, transactions)
        assert checkpoint
        self.written += transactions

    def close(self) -> None:
        pass


def deliver(
    shop: Shop, output: Output, store: Path, how: DeliverySettings = HOW, metrics: MetricsFile | None = None,
) -> Delivery:
    held_store = HeldStore(FileCheckpoint(store))
    places = ReportPlaces(shop.paths, Selection(), FileDocuments(store), metrics=metrics)

    def open_subscription(held: str | None) -> Subscription:
        settings = SubscriptionSettings(until_caught_up=True, checkpoint=held)
        return Subscription([shop.paths], settings, held_store)

    with held_store, OutputReporter(how.name, places) as reporter:
        delivery = Delivery(output, open_subscription, shop.paths, how, threading.Event(), reporter)
        delivery.run()
    return delivery


def everything(shop: Shop) -> list[str]:
    with shop.subscribe() as subscription:
        return describe(list(subscription))


def test_delivery_writes_all_once_and_resumes(shop: Shop, tmp_path: Path) -> None:
    output = Faulty()
    counts = deliver(shop, output, tmp_path / "checkpoint").counts
    assert describe(output.written) == everything(shop)
    assert counts.events == sum(len(one.events) for one in output.written)
    again = Faulty()
    assert deliver(shop, again, tmp_path / "checkpoint").counts.events == 0
    assert again.written == []


def test_failed_write_is_repeated_from_checkpoint(shop: Shop, tmp_path: Path) -> None:
    def fail(call: int, _: Sequence[Transaction]) -> None:
        if call in (2, 3):
            raise OutputUnavailable("away")

    output = Faulty(fail)
    counts = deliver(shop, output, tmp_path / "checkpoint").counts
    assert describe(output.written) == everything(shop)
    assert (counts.retries, output.opened) == (2, 3)


def test_slow_output_holds_back_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first write takes its time, at most three of twenty portions are read, however long it takes."""
    lake, schema = PlainLake(tmp_path), table_schema("public.t", "id text key", "v text")
    lake.schema(schema)
    for batch in range(1, 21):
        lake.land(batch, {schema: [(10 * batch, "c", str(batch), {"id": str(batch), "v": "x"})]})
    rows_read, is_too_much, seen = list[str](), threading.Event(), list[bool]()

    def open_counted(table: str, path: str, *footer: Any) -> AbstractContextManager[ParquetFile]:
        # Without a footer, the footer alone is read.
        if footer:
            rows_read.append(path)
        if len(rows_read) > at_most:
            is_too_much.set()
        return open_event_file(table, path, *footer)

    def wait(call: int, _: Sequence[Transaction]) -> None:
        if call == 1:
            seen.append(is_too_much.wait(0.3))

    # Each file is a portion; the newest one is also searched for a transaction that is still open.
    monkeypatch.setattr(event_table, "PORTION_BYTES", 1)
    monkeypatch.setattr(reader, "open_event_file", open_counted)
    at_most, output, stop = 3 + 1, Faulty(wait), threading.Event()
    settings = SubscriptionSettings(start="1/0", until_caught_up=True)
    how = replace(HOW, max_events=1)
    Delivery(output, lambda _: Subscription([lake.paths], settings), lake.paths, how, stop).run()
    assert seen == [False]
    assert (len(rows_read), len(output.written)) == (21, 21)


def test_failure_for_too_long_ends_delivery(shop: Shop, tmp_path: Path) -> None:
    def fail(call: int, _: Sequence[Transaction]) -> None:
        if call > 1:
            raise OutputUnavailable("away")

    first = Faulty(fail)
    with pytest.raises(OutputUnavailable):
        deliver(shop, first, tmp_path / "checkpoint", replace(HOW, retry_seconds=0))
    rest = Faulty()
    deliver(shop, rest, tmp_path / "checkpoint")
    assert describe(first.written) + describe(rest.written) == everything(shop)


def test_process_that_was_replaced_writes_no_more(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def displace(_: FileCheckpoint, __: str) -> None:
        raise Fenced("another process uses the checkpoint")

    monkeypatch.setattr(FileCheckpoint, "save", displace)
    output = Faulty()
    with pytest.raises(Fenced):
        deliver(shop, output, tmp_path / "checkpoint")
    assert output.calls == 1


def test_lapsed_lease_stops_writes_until_it_is_held(shop: Shop, tmp_path: Path) -> None:
    """It lapses while a write is repeated without a rejected event."""
    answers = iter([True, False])
    has_rejected: list[int] = []

    def reject(_: int, transactions: Sequence[Transaction]) -> None:
        if not has_rejected:
            event = next(event for one in transactions for event in one.events)
            has_rejected.append(1)
            raise EventRejected("too long", table=event.table, position=event.position)

    class Leased(Subscription):
        def is_held(self) -> bool:
            return next(answers, True)

    output, settings = Faulty(reject), SubscriptionSettings(until_caught_up=True)
    delivery = Delivery(
        output, lambda _: Leased([shop.paths], settings, FileCheckpoint(tmp_path / "checkpoint")), shop.paths,
        replace(HOW, name="leased"), threading.Event(),
    )
    assert (delivery.run().retries, output.opened) == (1, 2)
    assert sum(len(one.events) for one in output.written) == delivery.counts.events - 1
    assert len(output.written) == len(everything(shop))


def test_bug_of_output_is_not_retried(shop: Shop, tmp_path: Path) -> None:
    def fail(_: int, __: Sequence[Transaction]) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        deliver(shop, Faulty(fail), tmp_path / "checkpoint")


def test_rejected_event_becomes_dead_letter(shop: Shop, tmp_path: Path) -> None:
    def reject(_: int, transactions: Sequence[Transaction]) -> None:
        for event in (event for one in transactions for event in one.events):
            if event.op == "u" and event.table == "public.right" and event.origin == "log":
                raise EventRejected("too long", table=event.table, position=event.position)

    output = Faulty(reject)
    counts = deliver(shop, output, tmp_path / "checkpoint", replace(HOW, max_dead_letters=50)).counts
    letters = query_rows(shop.paths.dead_letters, "SELECT * FROM t WHERE output = 'archive'")
    assert counts.dead_letters == len(letters) > 2
    kept = [event for one in output.written for event in one.events]
    logged = [one for one in output.written if one.events and one.events[0].origin == "log"]
    assert any(len(one.events) == 1 for one in logged)
    assert all([event.last_in_transaction for event in one.events] == [False] * (len(one.events) - 1) + [True]
               for one in logged)
    assert len(kept) + len(letters) == sum(len(e.split("; ")) for e in everything(shop) if e.startswith("public"))
    with pytest.raises(EventRejected):
        deliver(shop, Faulty(reject), tmp_path / "other")


def test_jsonl_files_have_every_line_once(shop: Shop, tmp_path: Path) -> None:
    """The job dies after it has written lines that its checkpoint does not cover."""
    path = str(tmp_path / "out" / "{table}.jsonl")
    deliver(shop, JsonlOutput(CONTEXT, path=path), tmp_path / "checkpoint")
    whole = {file.name: file.read_bytes() for file in (tmp_path / "out").glob("*.jsonl")}
    assert set(whole) == {"public.left.jsonl", "public.right.jsonl", "_control.jsonl"}
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "out").iterdir()} == {0}

    other = str(tmp_path / "dies" / "{table}.jsonl")

    class Dies(JsonlOutput):
        calls = 0

        def _record(self) -> None:
            self.calls += 1
            if self.calls % 3 == 0:
                raise KeyError("the process dies")
            super()._record()

    for _ in range(30):
        try:
            deliver(shop, Dies(CONTEXT, path=other), tmp_path / "stale")
            break
        except KeyError:
            continue
    assert {file.name: file.read_bytes() for file in (tmp_path / "dies").glob("*.jsonl")} == whole


def test_jsonl_shortened_file_rejected(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    deliver(shop, JsonlOutput(CONTEXT, path=str(path)), tmp_path / "checkpoint")
    assert all(json.loads(line)["source"] == "shop" for line in path.read_text(encoding="utf-8").splitlines())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ConfigError, match=r"has \d+ bytes, fewer than the \d+ written"):
        deliver(shop, JsonlOutput(CONTEXT, path=str(path)), tmp_path / "checkpoint")


def test_stdout_marks_saved_checkpoints(shop: Shop, tmp_path: Path) -> None:
    stream = io.BytesIO()
    deliver(shop, StdoutOutput(CONTEXT, stream), tmp_path / "checkpoint", replace(HOW, marks_checkpoints=True))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[-1]["control"] == "checkpoint"
    assert lines[-1]["position"] == lines[-2]["position"]


def test_stdout_ends_with_error_that_ends_run(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = list[str]()

    def displace(_: FileCheckpoint, checkpoint: str) -> None:
        saved.append(checkpoint)
        if len(saved) > 1:
            raise Fenced("another process uses the checkpoint")

    monkeypatch.setattr(FileCheckpoint, "save", displace)
    stream = io.BytesIO()
    with pytest.raises(Fenced):
        deliver(shop, StdoutOutput(CONTEXT, stream), tmp_path / "checkpoint", replace(HOW, marks_errors=True))
    last = json.loads(stream.getvalue().splitlines()[-1])
    assert (last["control"], last["message"]) == ("error", "another process uses the checkpoint")
    assert last["source"] == "shop" and last["position"]


def test_metrics_hold_counts(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "output.prom"
    labels = {"source": "shop", "output": "archive"}
    counts = deliver(shop, Faulty(), tmp_path / "checkpoint", metrics=MetricsFile(file, labels)).counts
    text = file.read_text(encoding="utf-8")
    assert f'dblake_output_events{{output="archive",source="shop"}} {float(counts.events)}' in text
    # Everything is delivered, however old the newest change is.
    for figure in ("lag_seconds", "lag_bytes"):
        assert f'dblake_output_{figure}{{output="archive",source="shop"}} 0.0' in text


@pytest.mark.parametrize("reference", ["nonsense", "no.such:Class", "json:Nothing"])
def test_unknown_class_rejected(reference: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no {reference}"):
        make_format(reference)
    with pytest.raises(ConfigError, match=f"there is no {reference}"):
        make_output(reference, CONTEXT, {})


def test_custom_class_is_made_with_settings() -> None:
    assert isinstance(make_output("dblake.serve.outputs.jsonl:JsonlOutput", CONTEXT, {"path": "x"}), JsonlOutput)
    with pytest.raises(ConfigError, match="does not take these settings"):
        make_output("jsonl", CONTEXT, {"paht": "x"})


class _Shared(JsonlOutput):
    """Lets another run of the same output begin once this one has written."""

    def __init__(self, path: Path, begin_other: Callable[[], None]) -> None:
        super().__init__(CONTEXT, path=str(path))
        self._begin_other = begin_other

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        super().write(transactions, checkpoint)
        self._begin_other()


@pytest.mark.parametrize("checkpoint", ["checkpoint", "another"])
def test_second_run_of_jsonl_changes_no_file(shop: Shop, tmp_path: Path, checkpoint: str) -> None:
    """The second one is rejected by the checkpoint's lock or, with a checkpoint elsewhere, by that of the files."""
    path, rejected = tmp_path / "all.jsonl", list[str]()

    def begin_other() -> None:
        size = path.stat().st_size
        # What the checkpoint does not cover is what a second run would cut off.
        with path.open("ab") as file:
            file.write(b"{}\n")
        with pytest.raises(Fenced) as error:
            deliver(shop, JsonlOutput(CONTEXT, path=str(path)), tmp_path / checkpoint)
        rejected.append(error.value.what)
        assert path.stat().st_size == size + 3
        os.truncate(path, size)

    deliver(shop, _Shared(path, begin_other), tmp_path / "checkpoint")
    assert len(rejected) > 1
    assert "another process" in rejected[0]


def test_second_run_opens_no_output(shop: Shop, tmp_path: Path) -> None:
    """The checkpoint is taken before an output may connect, create tables or cut files back."""
    holder, second, file = FileCheckpoint(tmp_path / "checkpoint"), Faulty(), tmp_path / "output.prom"
    holder.open()
    with pytest.raises(Fenced):
        deliver(shop, second, tmp_path / "checkpoint", metrics=MetricsFile(file, {}))
    assert second.opened == 0
    assert not file.exists() and not (tmp_path / "checkpoint.status.json").exists()
    holder.close()
    deliver(shop, second, tmp_path / "checkpoint")
    assert describe(second.written) == everything(shop)


def test_lock_is_released_after_output_is_closed(shop: Shop, tmp_path: Path) -> None:
    """Closing may write what is buffered, which must not meet another process's writes."""
    store, seen = tmp_path / "checkpoint", list[str]()

    class Last(Faulty):
        def close(self) -> None:
            with pytest.raises(Fenced):
                FileCheckpoint(store).open()
            seen.append("locked")

    deliver(shop, Last(), store)
    assert seen == ["locked"]


@pytest.mark.parametrize("pattern", ["all.jsonl", "{table}.jsonl"])
def test_jsonl_file_without_checkpoint_rejected(shop: Shop, tmp_path: Path, pattern: str) -> None:
    """Lines that no checkpoint covers are not overwritten; the next step that the error names helps."""
    file = tmp_path / pattern.format(table="public.left")
    file.write_text("kept\n", encoding="utf-8")
    path = str(tmp_path / pattern)
    with pytest.raises(ConfigError, match=f"{file} has lines that the checkpoint beside it") as error:
        deliver(shop, JsonlOutput(CONTEXT, path=path), tmp_path / "checkpoint")
    assert "move the file away" in error.value.next_step
    assert file.read_text(encoding="utf-8") == "kept\n"
    file.rename(tmp_path / "moved")
    deliver(shop, JsonlOutput(CONTEXT, path=path), tmp_path / "checkpoint")
    assert (tmp_path / "moved").read_text(encoding="utf-8") == "kept\n"
    assert file.stat().st_size


def test_failed_write_is_closed_before_the_pause(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an output has queued must not be sent while the run waits, perhaps without its lease."""
    steps = list[str]()

    class Queueing(Faulty):
        def close(self) -> None:
            steps.append("close")

    def fail(call: int, _: Sequence[Transaction]) -> None:
        if call == 2:
            steps.append("fail")
            raise OutputUnavailable("away")

    wait = Delivery._wait_after

    def note_wait(delivery: Delivery, error: DblakeError) -> None:
        steps.append("wait")
        wait(delivery, error)

    monkeypatch.setattr(Delivery, "_wait_after", note_wait)
    deliver(shop, Queueing(fail), tmp_path / "checkpoint")
    assert steps == ["fail", "close", "wait", "close"]


def test_output_of_group_is_given_its_lease(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output asks the group's lease, which this process does not hold before it has joined."""
    contexts = list[OutputContext]()

    def make(context: OutputContext) -> Output:
        contexts.append(context)
        raise ConfigError("made")

    monkeypatch.setitem(sys.modules, "made_here", SimpleNamespace(make=make))
    target = ConfiguredOutput("made_here:make", group=Group(2, "zookeeper://127.0.0.1:1/group"))
    with pytest.raises(ConfigError, match="made"):
        run.deliver(shop.paths, "bus", {"bus": target}, run.SubscribeOptions(), "file:p", {}, threading.Event())
    with pytest.raises(ProgressUnavailable, match="lease"):
        contexts[0].require_lease()


def test_report_of_resumed_run_claims_no_start(shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dblake")
    first = deliver(shop, Faulty(), tmp_path / "checkpoint")
    assert f", at {first.counts.position}, " in caplog.messages[-1]
    deliver(shop, Faulty(), tmp_path / "checkpoint")
    assert caplog.messages[-1] == "output archive: 0 events in 0 transactions, 0 dead letters"


def test_jsonl_folder_that_is_a_file_is_named(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    path = tmp_path / "file" / "all.jsonl"
    with pytest.raises(ConfigError, match=rf"output archive: {path.parent}\S* cannot be written: ") as caught:
        deliver(shop, JsonlOutput(CONTEXT, path=str(path)), tmp_path / "checkpoint")
    assert "set outputs.archive.path to a file" in caught.value.next_step


def test_output_learns_which_events_have_expired(tmp_path: Path) -> None:
    """Between writes it is given the newest position that maintenance may have removed, once there is one."""
    shop, expired = folded_shop(tmp_path, 5, later=6), list[tuple[str, Position]]()

    class Forgetting(Faulty):
        def expire(self, source: str, upto: Position) -> None:
            assert self.written
            expired.append((source, upto))

    output = Forgetting()
    deliver(shop, output, tmp_path / "checkpoint")
    assert expired == []
    record_batch(shop.paths.events, Application.consolidation("shop"), shop.lake.reached.batch)
    deliver(shop, output, tmp_path / "checkpoint")
    newest = max(event.position for one in output.written for event in one.events)
    assert expired == [("shop", newest)]
