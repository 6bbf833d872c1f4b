"""The stress oracle in its short form, and tests that the oracle detects every kind of wrong step.

The long form is ``./spark-submit.sh stress``. ``DBLAKE_EFFORT`` lengthens this one, ``DBLAKE_SEED`` repeats one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.effort import EFFORT, choose_seed
from tests.support.oracle import ObservedEvent, Step, find_wrong_steps, remaining_rows
from tests.support.rig import PACE, rig_on
from tests.support.stress import Stress

SECONDS = 14.0 * EFFORT

# One key: updated, deleted, inserted again, updated.
WRITTEN = {"7": [Step("u", 1), Step("u", 2), Step("d", 2), Step("c", 3), Step("u", 4)]}
OBSERVED = ["u 1", "u 2", "d", "c 3", "u 4"]


def events(lines: list[str]) -> list[ObservedEvent]:
    """``u 1`` and so on, each an event of key 7, at its index in the list."""
    words = [line.split() for line in lines]
    return [ObservedEvent("7", op, int(n[0]) if n else None, place) for place, (op, *n) in enumerate(words)]


@pytest.mark.parametrize(("lines", "wrong"), [
    (OBSERVED, []),
    (["r 0", *OBSERVED, "r 4"], []),
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
    ([*OBSERVED, "phantom"], ["phantom None of key 7 at 5: after u 4 repeated or never written"]),
    ([*OBSERVED, "f 4"], ["f 4 of key 7 at 5: after u 4 repeated or never written"]),
])
def test_oracle_detects_wrong_steps(lines: list[str], wrong: list[str]) -> None:
    assert find_wrong_steps(events(lines), WRITTEN) == wrong


def test_oracle_detects_key_never_written() -> None:
    wrong = find_wrong_steps([ObservedEvent("8", "c", 1, 0)], {})
    assert wrong == ["c 1 of key 8 at 0: after r 0 repeated or never written"]


def test_oracle_returns_remaining_rows() -> None:
    assert remaining_rows({"1": [], **WRITTEN, "9": [Step("u", 1), Step("d", 1)]}) == {"1": 0, "7": 4}


# One through Spark, whose jobs are killed too; one through the specification in plain Python, which takes no time.
@pytest.mark.parametrize(("kind", "jobs"), [
    pytest.param("postgres", ("reconcile", "state"), marks=pytest.mark.slow, id="postgres with Spark"),
    pytest.param("mariadb", (), marks=pytest.mark.slow, id="mariadb"),
])
@pytest.mark.timeout(900)
def test_every_step_lands_once_while_jobs_are_killed(
    kind: str, jobs: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = choose_seed()
    pace: dict[str, Any] = PACE if jobs else {}
    with rig_on(kind, request, tmp_path, **pace) as rig:
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
