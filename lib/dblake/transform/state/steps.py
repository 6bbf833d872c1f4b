"""What there is to fold: events in bounded steps, cut between landing batches.

A survey of the new events determines which tables each step touches, and how many bytes of events each has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dblake.base.core.position import Position
from dblake.base.core.steps import step
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.state.survey import EventSurvey, StepCounts, survey

_SPAN_STEPS = 4
"""Batches of so many steps are surveyed at once."""


@dataclass
class Step:
    """Events up to landing batch ``batch``, which reach ``position``, None if all are from before the frontier.

    By table: ``counts`` of events, and ``truncates`` with their batches.
    """

    batch: int
    position: Position | None
    counts: dict[str, StepCounts] = field(default_factory=dict)
    truncates: dict[str, list[tuple[int, Position]]] = field(default_factory=dict)

    def without(self, tables: Collection[str]) -> Step:
        """Return the step without these tables."""
        return replace(self, counts={table: count for table, count in self.counts.items() if table not in tables})

    def waves(self, most: int, large: int) -> Iterator[list[str]]:
        """Yield groups of tables with up to ``most`` bytes of events; a table above ``large`` is alone."""
        group: list[str] = []
        size = 0.0
        for table in sorted(self.counts):
            if self.counts[table].size > large:
                yield [table]
                continue
            if group and size + self.counts[table].size > most:
                yield group
                group, size = [], 0.0
            group.append(table)
            size += self.counts[table].size
        if group:
            yield group


def plan_spans(
    events: EventReader, done: int, last: int, behind: Mapping[str, int], batches_per_step: int
) -> Iterator[tuple[Step, bool]]:
    """Yield the steps after batch ``done`` up to ``last``, and whether one takes the last event.

    So many batches are surveyed at once that memory is bounded; more only while a transaction is open to their end.
    """
    span, listing = _SPAN_STEPS * batches_per_step, events.listing
    while True:
        # Without statistics a span would read all files, each time.
        upto = last if listing.newest_batch is None else min(listing.first_batch(done) - 1 + span, last)
        with step("state.plan", after_batch=done, until_batch=upto):
            plan, is_complete = plan_steps(survey(events, Predicate(done, upto, behind)), done, batches_per_step)
        if upto < last and (not plan or plan[-1].batch <= done):
            span *= 2
            continue
        for part in plan:
            yield part, is_complete and upto == last and part is plan[-1]
        if upto >= last:
            return
        done, behind, span = plan[-1].batch, {}, _SPAN_STEPS * batches_per_step


def plan_steps(found: EventSurvey, done: int, batches_per_step: int) -> tuple[list[Step], bool]:
    """Return the steps after batch ``done``, and whether they take all events: an open transaction waits."""
    ends = [{"batch": batch, "open": end.open} for batch, end in sorted(found.ends.items())]
    # Without a cut there may still be tables that were left behind: what they lack lies before the frontier.
    edges = cuts(ends, done, batches_per_step) or [done]
    plan, batches = [], np.array(sorted(found.ends), np.int64)
    for number, counts in enumerate(found.count_until(edges)):
        first = done if number == 0 else edges[number - 1]
        inside = batches[(batches > first) & (batches <= edges[number])].tolist()
        if counts:
            newest = max((found.ends[batch].newest for batch in inside), default=None)
            plan.append(Step(max(inside, default=done), newest, counts))
    for (batch, table), position in sorted(found.truncates.items()):
        part = next((part for part in plan if batch <= part.batch), None)
        if part is not None:
            part.truncates.setdefault(table, []).append((batch, position))
    return plan, not found.ends or (bool(plan) and plan[-1].batch == max(found.ends))


def cuts(ends: Sequence[Mapping[str, Any]], done: int, batches_per_step: int) -> list[int]:
    """Return the batch each step goes up to: about so many a step, and none with a transaction open at its end."""
    newest = max((row["batch"] for row in ends), default=0)
    inside = {row["batch"] for row in ends if row["open"]}
    found: list[int] = []
    while done < newest:
        cut = min(done + batches_per_step, newest)
        while cut in inside and cut < newest:
            cut += 1
        # A transaction that has not landed whole waits for the next run.
        while cut in inside and cut > done:
            cut -= 1
        if cut == done:
            break
        found.append(cut)
        done = cut
    return found
