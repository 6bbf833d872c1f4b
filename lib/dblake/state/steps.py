"""What there is to fold: events in bounded steps, cut between landing batches.

A survey of the new events, which does not read their payloads, determines which tables each step touches, and how many
bytes of events each has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dblake.core.position import Position
from dblake.state.events import Survey


@dataclass
class Step:
    """Events up to landing batch ``batch``, which reach ``position``.

    By table: ``counts`` of events, ``sizes`` of their images in bytes, ``truncates`` with their batches.
    """

    batch: int
    position: Position
    counts: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)
    truncates: dict[str, list[tuple[int, Position]]] = field(default_factory=dict)

    def waves(self, most: int, large: int) -> Iterator[list[str]]:
        """Yield groups of tables with up to ``most`` bytes of events; a table above ``large`` is alone."""
        group: list[str] = []
        size = 0.0
        for table in sorted(self.counts):
            if self.sizes[table] > large:
                yield [table]
                continue
            if group and size + self.sizes[table] > most:
                yield group
                group, size = [], 0.0
            group.append(table)
            size += self.sizes[table]
        if group:
            yield group


def plan_steps(survey: Survey, done: int, batches_per_step: int) -> tuple[list[Step], bool]:
    """Return the steps after batch ``done``, and whether they take all events: an open transaction waits."""
    if not survey.ends:
        return [], True
    ends = [{"batch": batch, "open": end.open} for batch, end in sorted(survey.ends.items())]
    # Without a cut there may still be tables that were left behind: what they lack lies before the frontier.
    edges = cuts(ends, done, batches_per_step) or [done]
    steps: dict[int, Step] = {}
    for (batch, table), count in sorted(survey.counts.items()):
        if batch > edges[-1]:
            continue
        edge = next(edge for edge in edges if batch <= edge)
        newest = survey.ends[batch].newest
        step = steps.setdefault(edge, Step(batch, newest))
        step.batch, step.position = max(step.batch, batch), max(step.position, newest)
        step.counts[table] = step.counts.get(table, 0) + count
        step.sizes[table] = step.sizes.get(table, 0.0) + survey.sizes[batch, table]
        if (batch, table) in survey.truncates:
            step.truncates.setdefault(table, []).append((batch, survey.truncates[batch, table]))
    plan = [steps[edge] for edge in edges if edge in steps]
    return plan, bool(plan) and plan[-1].batch == max(survey.ends)


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
