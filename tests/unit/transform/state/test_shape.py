"""The first version from which a table's schema versions share one state table shape."""

from __future__ import annotations

import pytest

from dblake.base.core.errors import IncompatibleSchemaChange
from dblake.base.core.schema import Column, TableSchema
from dblake.transform.state.shape import first_compatible_version, require_one_key


def version(text: str) -> TableSchema:
    """``"id integer key, n bigint"``."""
    columns = []
    for part in text.split(", "):
        name, kind = part.removesuffix(" key").split(" ", 1)
        columns.append(Column(name, kind, key=1 if part.endswith(" key") else None))
    return TableSchema("public.t", tuple(columns))


ID = "id integer key"


@pytest.mark.parametrize(
    ("versions", "first"),
    [
        ([ID], 0),
        ([ID, f"{ID}, n integer", f"{ID}, n bigint", ID, f"{ID}, n smallint"], 0),
        ([f"{ID}, n integer", f"{ID}, n text"], 1),
        ([f"{ID}, n integer", f"{ID}, n text", f"{ID}, m text"], 1),
        ([f"{ID}, n text", f"{ID}, n integer", f"{ID}, n bigint"], 1),
        ([f"{ID}, n text", f"{ID}, m text", f"{ID}, n integer"], 1),
        (["id integer, n integer key", f"{ID}, n integer", f"{ID}, n integer"], 1),
        ([f"{ID}, n integer", "id integer, n integer key", f"{ID}, n integer"], 2),
        ([f"{ID}, n numeric(5,2)", f"{ID}, n numeric(9,4)", f"{ID}, n integer"], 2),
    ],
)
def test_first_compatible_version_follows_last_break(versions: list[str], first: int) -> None:
    assert first_compatible_version([version(text) for text in versions]) == first


def test_two_primary_keys_are_rejected_for_rebuild() -> None:
    require_one_key([version(ID), version(f"{ID}, n integer")])
    message = r"^table public.t: its primary key changed. Next: .*--table 'public.t'"
    with pytest.raises(IncompatibleSchemaChange, match=message):
        require_one_key([version("id integer, n integer key"), version(f"{ID}, n integer")])
