"""The chain of heartbeats: each names the one before it."""

from __future__ import annotations

import pytest

from dblake.base.core.source.heartbeats import NAME_CHARS, chain_heartbeat, names_as_predecessor, new_heartbeat_name

FIRST, OTHER = "0" * NAME_CHARS, "f" * NAME_CHARS
UUID = "7b0eb4a4-0000-4000-8000-000000000001"


@pytest.mark.parametrize(("before", "value", "named"), [
    pytest.param(FIRST + OTHER, chain_heartbeat(OTHER, FIRST + OTHER), True, id="the next one"),
    pytest.param(FIRST + OTHER, chain_heartbeat(OTHER, OTHER + FIRST), False, id="follows another"),
    pytest.param(FIRST + OTHER, chain_heartbeat(OTHER, ""), False, id="follows a new row"),
    pytest.param("", chain_heartbeat(OTHER, ""), True, id="the first one"),
    pytest.param(UUID, chain_heartbeat(OTHER, UUID), True, id="follows one of an earlier version"),
    pytest.param(FIRST + OTHER, UUID, None, id="of an earlier version"),
    pytest.param(FIRST + OTHER, "", None, id="emptied by hand"),
])
def test_value_names_its_predecessor_alone(before: str, value: str, named: bool | None) -> None:
    assert names_as_predecessor(value, before) is named


def test_value_fits_the_watermark_column() -> None:
    """The column is ``varchar(36)``."""
    names = {new_heartbeat_name() for _ in range(100)}
    assert len(names) == 100
    assert {len(chain_heartbeat(name, chain_heartbeat(name, FIRST))) for name in names} == {36}
