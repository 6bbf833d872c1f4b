"""The stress oracle in its short form, and that it is one: it tells every way in which a step may go wrong.

The long form is ``./spark-submit.sh stress``. ``DBLAKE_FAULT_SECONDS`` lengthens this one, ``DBLAKE_SEED`` repeats one.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.oracle import ObservedEvent, Step, find_wrong_steps, remaining_rows
from tests.support.rig import PACE, rig_on
from tests.support.stress import Stress

SECONDS = float(os.environ.get("DBLAKE_FAULT_SECONDS", "14"))

# One key: updated, deleted, inserted again, updated.
WRITTEN = {"7": [Step("u", 1), Step("u", 2), Step("d", 2), Step("c", 3), Step("u", 4)]}
TOLD = ["u 1", "u 2", "d", "c 3", "u 4"]


def events(said: list[str]) -> list[ObservedEvent]:
    """``u 1`` and so on, each an event of key 7, at its place in the list."""
    words = [line.split() for line in said]
    return [ObservedEvent("7", op, int(n[0]) if n else None, place) for place, (op, *n) in enumerate(words)]


@pytest.mark.parametrize(("said", "wrong"), [
    (TOLD, []),
    (["r 0", *TOLD, "r 4"], []),
    (["u 1", "r 1", "u 2", "r 2", "r 2", "d", "c 3", "u 4"], []),
    (["u 1", "d", "c 3", "u 4"], ["d None of key 7 at 1: 1 steps after u 1 are missing"]),
    (["u 1", "u 2", "c 3", "u 4"], ["c 3 of key 7 at 2: 1 steps after u 2 are missing"]),
    (["u 1", "u 2", "d", "c 3"], ["key 7: the last 1 steps are missing"]),
    ([], ["key 7: the last 5 steps are missing"]),
    (["u 1", "u 1", "u 2", "d", "c 3", "u 4"], ["u 1 of key 7 at 1: after u 1 repeated or never written"]),
    (["u 1", "u 2", "d", "d", "c 3", "u 4"], ["d None of key 7 at 3: after d 2 repeated or never written"]),
    (["u 2", "u 1", "d", "c 3", "u 4"], [
        "u 2 of key 7 at 0: 1 steps after r 0 are missing", "u 1 of key 7 at 1: after u 2 repeated or never written",
    ]),
    (["u 1", "u 2", "r 1", "d", "c 3", "u 4"], ["r 1 of key 7 at 2: dumped after the log had reached u 2"]),
    (["u 1", "u 2", "d", "r 2", "c 3", "u 4"], ["r 2 of key 7 at 3: dumped after the log had reached d 2"]),
    ([*TOLD, "phantom"], ["phantom None of key 7 at 5: after u 4 repeated or never written"]),
    ([*TOLD, "f 4"], ["f 4 of key 7 at 5: after u 4 repeated or never written"]),
])
def test_what_the_oracle_says(said: list[str], wrong: list[str]) -> None:
    assert find_wrong_steps(events(said), WRITTEN) == wrong


def test_a_key_that_nobody_wrote_is_told() -> None:
    assert find_wrong_steps([ObservedEvent("8", "c", 1, 0)], {}) == [
        "c 1 of key 8 at 0: after r 0 repeated or never written"
    ]


def test_the_rows_that_steps_leave() -> None:
    assert remaining_rows({"1": [], **WRITTEN, "9": [Step("u", 1), Step("d", 1)]}) == {"1": 0, "7": 4}


# One of the two through Spark, whose jobs are killed too; the other through the specification, which takes no time.
@pytest.mark.parametrize(("kind", "jobs"), [("postgres", ("reconcile", "state")), ("mariadb", ())])
@pytest.mark.timeout(900)
def test_every_step_is_there_once_whatever_dies(
    kind: str, jobs: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = int(os.environ.get("DBLAKE_SEED", str(time.time_ns() % 100_000)))
    print(f"DBLAKE_SEED={seed}")
    with rig_on(kind, request, tmp_path, **(PACE if jobs else {})) as rig:
        stress = Stress(rig, seed=seed, seconds=SECONDS, kill_every=3.0, jobs=jobs)
        seconds, writers = stress.run()
        if jobs:
            rig.verify_tables()
        else:
            rig.verify()
        figures = stress.figures(seconds, writers)
        print(figures)
    assert figures.kills["capture"] >= 3 and (not jobs or figures.kills["reconcile"])
    assert figures.transactions > 300 and figures.events > figures.steps > figures.transactions
    assert figures.dumps >= 3
