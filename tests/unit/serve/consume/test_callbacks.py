"""The callback interface: the paper's order of calls, and each answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dblake.base.core.errors import ConsumeError
from dblake.base.core.position import Position
from dblake.base.lake.query import query_rows
from dblake.serve.consume.callbacks import run_consumer
from dblake.serve.consume.consumer import Consumer, Result
from dblake.serve.consume.model import Control, Event
from tests.support.consumers import Shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Return a shop whose events hold two transactions after the initial rows; nothing is dumped."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    shop.move(2)
    shop.land()
    shop.reconcile()
    return shop


class Recorder(Consumer):
    """Records its calls; answers those of a name with the next of ``answers``."""

    def __init__(self, name: str = "", answers: Iterator[Result | Exception] = iter(())) -> None:  # noqa: B008
        self.calls: list[str] = []
        self._name, self._answers = name, answers

    def _answer(self, call: str) -> Result:
        self.calls.append(call)
        answer = next(self._answers, Result.SUCCESS) if call.startswith(self._name) and self._name else Result.SUCCESS
        if isinstance(answer, Exception):
            raise answer
        return answer

    def on_start_sequence(self, position: Position) -> Result:
        return self._answer(f"start {position.lsn}")

    def on_start_source(self, source: str, table: str) -> Result:
        return self._answer(f"start {source} {table}")

    def on_event(self, event: Event) -> Result:
        return self._answer(f"event {event.op}")

    def on_end_source(self, source: str, table: str) -> Result:
        return self._answer(f"end {source} {table}")

    def on_end_sequence(self, position: Position) -> Result:
        return self._answer(f"end {position.lsn}")

    def on_control(self, control: Control) -> Result:
        return self._answer(f"control {control.kind}")

    def on_checkpoint(self, position: Position) -> Result:
        return self._answer(f"checkpoint {position.lsn}")

    def on_rollback(self) -> Result:
        return self._answer("rollback")

    def on_error(self, error: Exception) -> Result:
        return self._answer(f"error {type(error).__name__}")


def play(shop: Shop, name: str = "", *answers: Result | Exception, attempts: int = 3, every: int = 1) -> list[str]:
    recorder = Recorder(name, iter(answers))
    try:
        run_consumer(shop.subscribe(start="1/0"), recorder, max_attempts=attempts, checkpoint_every=every)
    finally:
        shop.calls = recorder.calls  # type: ignore[attr-defined]
    return recorder.calls


def transactions(calls: list[str]) -> list[str]:
    return [call.partition(" ")[2] for call in calls if call.startswith("end ") and call[4:].isdigit()]


def test_calls_come_in_order(shop: Shop) -> None:
    calls = play(shop)
    first, second = transactions(calls)
    middle = calls.index(f"start {second}")
    assert calls[:4] == ["control schema", calls[1], "control schema", calls[3]]
    assert calls[1].startswith("checkpoint")
    assert calls[middle:] == [
        f"start {second}", "start shop public.left", "event u", "end shop public.left", "start shop public.right",
        "event u", "end shop public.right", f"end {second}", f"checkpoint {second}",
    ]
    assert first < second


def test_checkpoint_after_several_transactions(shop: Shop) -> None:
    calls = play(shop, every=3)
    assert [call for call in calls if call.startswith("checkpoint")] == [
        f"checkpoint {lsn}" for lsn in transactions(calls)
    ]


@pytest.mark.parametrize("answer", [Result.RETRY, ValueError("a callback's own")])
def test_retry_repeats_from_last_checkpoint(shop: Shop, answer: Result | Exception) -> None:
    plain = play(shop)
    calls = play(shop, "event", Result.SUCCESS, answer)
    place = calls.index("rollback")
    start = max(n for n, call in enumerate(calls[:place]) if call.startswith("start ") and call[6:].isdigit())
    assert calls[:start] + calls[place + 1 :] == plain


def test_retries_without_progress_end_with_error(shop: Shop) -> None:
    with pytest.raises(ConsumeError, match="3 attempts without progress"):
        play(shop, "event", *[Result.RETRY] * 5)
    assert shop.calls[-1] == "error ConsumeError"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="own"):
        play(shop, "event", *[ValueError("own")] * 5)


def test_skipped_event_is_dead_letter(shop: Shop) -> None:
    plain = play(shop)
    assert play(shop, "event", Result.SKIP) == plain
    (letter,) = query_rows(shop.paths.dead_letters, "SELECT * FROM t")
    assert (letter["output"], letter["table"], letter["incarnation"]) == ("consumer", "public.left", 1)


def test_stop_ends_without_checkpoint(shop: Shop) -> None:
    calls = play(shop, "event", Result.STOP)
    assert calls[-1] == "event u"


@pytest.mark.parametrize("name", ["start", "end", "control", "checkpoint", "start shop", "end shop"])
@pytest.mark.parametrize("answer", [Result.RETRY, KeyError("x")], ids=["retry", "exception"])
def test_every_callback_can_repeat_transaction(shop: Shop, name: str, answer: Result | Exception) -> None:
    plain = play(shop)
    calls = play(shop, name, answer)
    place = calls.index("rollback")
    # The call before it failed; if it was the save itself, nothing is saved.
    saved = max((n + 1 for n, call in enumerate(calls[: place - 1]) if call.startswith("checkpoint")), default=0)
    assert calls[:saved] + calls[place + 1 :] == plain


def test_stop_of_rollback_ends_run(shop: Shop) -> None:
    class Stopping(Recorder):
        def on_rollback(self) -> Result:
            super().on_rollback()
            return Result.STOP

    recorder = Stopping("event", iter([Result.RETRY]))
    run_consumer(shop.subscribe(start="1/0"), recorder)
    assert recorder.calls[-2:] == ["event u", "rollback"]


def test_consumer_without_overrides_takes_everything(shop: Shop) -> None:
    run_consumer(shop.subscribe(start="1/0"), Consumer())


def test_dead_letters_keep_no_values(shop: Shop) -> None:
    play(shop, "event", Result.SKIP)
    (letter, *_) = query_rows(shop.paths.dead_letters, "SELECT * FROM t")
    assert set(letter) == {"at", "output", "table", "incarnation", "lsn", "seq", "reason"}
    assert letter["reason"] == "the consumer skipped it"


class Hanging(Consumer):
    """Hangs in the first calls of ``on_event``, until it is released."""

    def __init__(self, times: int) -> None:
        self.events: list[Position] = []
        self.released = threading.Event()
        self._times = times

    def on_event(self, event: Event) -> Result:
        if self._times:
            self._times -= 1
            self.released.wait(60)
        else:
            self.events.append(event.position)
        return Result.SUCCESS


def test_callback_over_its_budget_comes_again(shop: Shop) -> None:
    expected, hanging = Hanging(0), Hanging(1)
    run_consumer(shop.subscribe(start="1/0"), expected)
    run_consumer(shop.subscribe(start="1/0"), hanging, callback_seconds=2)
    assert hanging.events == expected.events
    hanging.released.set()


def test_rollback_that_hangs_is_a_retry(shop: Shop) -> None:
    class HangingRollback(Hanging):
        def on_rollback(self) -> Result:
            self.released.wait()
            return Result.SUCCESS

    expected, hanging = Hanging(0), HangingRollback(1)
    run_consumer(shop.subscribe(start="1/0"), expected)
    run_consumer(shop.subscribe(start="1/0"), hanging, callback_seconds=2)
    assert hanging.events == expected.events
    hanging.released.set()


def test_callback_that_hangs_is_an_error(shop: Shop) -> None:
    hanging = Hanging(99)
    with pytest.raises(ConsumeError, match=r"took longer than 0\.3 s"):
        run_consumer(shop.subscribe(start="1/0"), hanging, callback_seconds=0.3, max_attempts=2)
    assert hanging.events == []
    hanging.released.set()
