"""The survey of landing batches: rows, watermarks, row groups, and their division among tasks."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from dblake.transform.reconcile.batch_summary import RowGroups, divided, joined, survey
from dblake.transform.reconcile.landing_files import LandingFiles
from tests.support.histories import play, random_steps
from tests.support.landed import Change, land

_PARTS = st.lists(
    st.builds(lambda name, count, size: RowGroups(name, tuple(range(count)), size * count),
              st.sampled_from("abcdefgh"), st.integers(1, 5), st.integers(1, 99)),
    unique_by=lambda part: part.path,
)


def groups(parts: list[RowGroups]) -> list[tuple[str, int]]:
    return [(part.path, group) for part in parts for group in part.groups]


@given(_PARTS, st.integers(1, 9))
def test_divided_parts_are_each_in_one_task_in_order(parts: list[RowGroups], count: int) -> None:
    tasks = divided(parts, count)
    assert len(tasks) <= count and all(tasks)
    assert [group for task in tasks for group in groups(task)] == groups(parts)


def test_divided_parts_of_one_size_fill_all_tasks() -> None:
    tasks = divided([RowGroups("a", (0, 1, 2, 3), 400), RowGroups("b", (0, 1), 200)], 3)
    assert [[part.groups for part in task] for task in tasks] == [[(0, 1)], [(2, 3)], [(0, 1)]]


def test_joined_parts_hold_no_row_group_twice() -> None:
    assert joined([RowGroups("a", (0, 2), 20)], [RowGroups("a", (1, 2), 20), RowGroups("b", (0,), 5)]) == [
        RowGroups("a", (0, 1, 2), 30), RowGroups("b", (0,), 5),
    ]


def test_survey_of_compacted_landing_equals_plain(tmp_path: Path) -> None:
    world = play(random_steps(153))
    path = str(tmp_path / "landing")
    land(path, "shop", world.landing, world.tables)
    files = LandingFiles(path, "shop")
    last = files.newest_batch
    plain = survey(files.files(2, last), 2, last)
    DeltaTable(path).optimize.compact()
    assert files.refresh() and len(files.files(1, last)) == 1
    compacted = survey(files.files(2, last), 2, last)
    for name in ("epochs", "incarnations", "watermarks", "schemas", "chunk_rows", "log_rows", "truncates"):
        assert getattr(compacted, name) == getattr(plain, name), name
    assert plain.log_rows == sum(isinstance(record, Change) and record.batch >= 2 for record in world.landing)


def test_portions_end_near_requested_size(tmp_path: Path) -> None:
    world = play(random_steps(153))
    path = str(tmp_path / "landing")
    land(path, "shop", world.landing, world.tables)
    files = LandingFiles(path, "shop")
    last = files.newest_batch
    assert last >= 3
    assert files.portions(1, last, 1) == list(range(1, last + 1))
    assert files.portions(2, last, 1 << 40) == [last]
