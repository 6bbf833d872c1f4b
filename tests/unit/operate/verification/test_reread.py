"""Wrong rows that change while they are read again: what counts as equal, as repaired, and as not compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dblake.base.core.errors import CopyDiffers, TableUnavailable
from dblake.base.core.mask_rules import Rule
from dblake.base.lake.verifications import VERIFICATIONS
from dblake.ingest.mask.masks import Masks
from dblake.operate.verification.ledger import (
    ChunkDifferences,
    ChunkResult,
    Round,
    append_results,
    newest_by_table,
    read_rounds,
)
from dblake.operate.verification.requests import Verification
from tests.unit.operate.verification.conftest import KEYS, Copy, Rows, T, found, set_value


def corrupt_third(copy: Copy) -> None:
    """Plant a value that an update of another column does not log."""
    copy.corrupt(lambda rows: set_value(rows, "3", big="planted"))


def verify_beside(copy: Copy, verification: Verification, change: Callable[[int], None]) -> dict[str, Any]:
    """Return the result of a verification; ``change`` runs between each reading, from 1 on, and its comparison."""
    for number in range(1, 30):
        copy.follow()
        change(number)
        copy.follow()
        if verification.advance():
            (result,) = verification.results()
            return result
    raise AssertionError("the verification does not end")


def repaired(copy: Copy) -> int:
    return sum(row["repaired"] for row in copy.ledger())


def test_wrong_row_skipped_in_second_reading_is_read_again(copy: Copy) -> None:
    """The update between the second reading and its comparison does not log the wrong column."""
    corrupt_third(copy)
    verification = copy.start()
    result = verify_beside(copy, verification, lambda number: copy.update("3", "b") if number == 2 else None)
    assert (found(result), verification.remaining()) == ((0, 0, 1), 1)
    assert [(row["round"], row["skipped_keys"]) for row in copy.ledger() if row["skipped_keys"]] == [(2, ["3"])]
    assert max(row["round"] for row in copy.ledger()) == 3


def test_wrong_row_never_compared_again_stays_wrong(copy: Copy) -> None:
    corrupt_third(copy)
    verification = copy.start()
    result = verify_beside(
        copy, verification, lambda number: copy.update("3", f"v{number}") if number > 1 else None
    )
    assert (found(result), verification.remaining()) == ((0, 0, 1), 1)
    with pytest.raises(CopyDiffers, match=r"1 rows of state differ.*1 of them changed each time they were read again"):
        verification.require_equal()


def test_extra_row_skipped_in_second_reading_is_read_again(copy: Copy) -> None:
    """The source gets the row, and loses it, while it is read again: that delete removes it from state, too."""
    copy.corrupt(lambda rows: [*rows, rows[0] | {"_key": "77", "id": "77"}])
    verification = copy.start()
    values = {"id": "77", "v": "x", "big": "y"}
    change = {2: lambda: copy.write(lambda t: t.insert(T, values), lambda t: t.delete(T, {"id": "77"}))}
    result = verify_beside(copy, verification, lambda number: change.get(number, lambda: None)())
    assert (found(result), verification.remaining()) == ((0, 0, 0), 0), "its own delete has removed it"
    assert [row["skipped_keys"] for row in copy.ledger() if row["closing"]] == [[], ["77"], []]


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["by key", "whole table"])
def test_row_skipped_after_repair_is_not_repaired(tmp_path: Path, masked: bool) -> None:
    """It changes after each reading that follows the repair, the last one excepted."""
    copy = Copy(tmp_path, Masks({T: {"id": Rule("hash")}}, b"a key of 16 bytes", text="text") if masked else None)
    state_key = sorted(copy.live_keys())[0] if masked else "1"
    copy.corrupt(lambda rows: set_value(rows, state_key, big="planted"))
    changed = KEYS[:-1] if masked else ["1"]

    def change_all(_: int) -> None:
        for key in changed:
            copy.update(key, "b")

    verification = copy.start(repair=True, columns=None if masked else 1)
    result = verify_beside(copy, verification, lambda n: change_all(n) if len(copy.lake.dumps()) > 1 else None)
    assert (found(result), result["repaired"], verification.remaining()) == ((0, 0, 1), 0, 1)
    assert repaired(copy) == 0


def test_ledger_counts_repaired_rows(copy: Copy) -> None:
    """Of three wrong rows one is skipped in the first reading after the repair."""
    copy.corrupt(lambda rows: [row for row in set_value(rows, "3", big="planted") if row["id"] != "5"])
    del copy.database.table(T).rows["7",]
    verification = copy.start(repair=True)
    changed: list[int] = []

    def change(number: int) -> None:
        if len(copy.lake.dumps()) > 1 and any(row["round"] == 2 for row in copy.ledger()) and len(changed) < 2:
            changed.append(number)
            copy.update("3", f"v{number}")

    result = verify_beside(copy, verification, change)
    assert (found(result), result["repaired"], verification.remaining()) == ((1, 1, 1), 3, 0)
    assert [row["repaired"] for row in copy.ledger() if row["closing"]] == [0, 0, 2, 1]


@pytest.mark.slow
def test_reading_that_skipped_every_row_is_no_verification(copy: Copy) -> None:
    def change_all(number: int) -> None:
        for row in copy.database.rows(T):
            copy.update(str(row["id"]), f"v{number}")

    verification = copy.start()
    result = verify_beside(copy, verification, change_all)
    assert (result["rows_compared"], result["rows_skipped"], verification.remaining()) == (0, 9, 0)
    message = r"1 of 1 tables could not be verified in 10 readings: public\.t.*all 9 rows"
    with pytest.raises(TableUnavailable, match=message):
        verification.require_equal()
    assert newest_by_table(copy.lake.paths) == {}


def test_ledger_of_earlier_version_takes_new_rows(copy: Copy) -> None:
    """It lacks the columns that were added since."""
    paths = copy.lake.paths
    names = [name for name in VERIFICATIONS.names if name not in ("skipped_keys", "lossy")]
    DeltaTable.create(paths.verifications, pa.schema([VERIFICATIONS.field(name) for name in names]))
    rows: Rows = []
    append_results(paths, [ChunkResult(
        Round("a"), T, "c1", copy.lake.reconciled()[0][-1].position, 1, rows_compared=1, closing=True,
        differences=ChunkDifferences(different=["1"], columns={"v": 1}, lossy=3), skipped_keys=("2",),
    )], 1)
    (summary,) = read_rounds(paths)["a", T]
    assert (summary.skipped_keys, summary.lossy, rows) == (("2",), 3, [])


def test_repair_that_deletes_too_much_is_refused(copy: Copy) -> None:
    """The source hides three of nine rows, as a broken index or a row policy does: the repair deletes none of them."""
    for key in ("3", "4", "5"):
        del copy.database.table(T).rows[key,]
    refused = copy.start(repair=True, max_removed=0.3)
    result = copy.verify(verification=refused)
    assert (found(result), result["repaired"], len(copy.live_keys())) == ((0, 3, 0), 0, 9)
    with pytest.raises(CopyDiffers, match=r"public\.t is not repaired: that would delete 3 of 9 rows") as error:
        refused.require_equal()
    assert "verify --repair --remove --wait" in error.value.next_step
    assert copy.verify(repair=True)["repaired"] == 3, "the next step helps"
    assert len(copy.live_keys()) == 6
