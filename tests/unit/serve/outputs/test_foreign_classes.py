"""An output class and a format class of a user's own, named in a configuration: the whole contract, from outside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dblake.outputs import Control, Event, EventRejected, OutputContext, OutputUnavailable, Transaction
from tests.support.output_lake import OutputLake

_HERE = "tests.unit.serve.outputs.test_foreign_classes"
WRITTEN: list[tuple[bytes | None, bytes | None]] = []
CALLS: list[str] = []


class Words:
    """A format: words, with a separator of its settings."""

    def __init__(self, separator: str) -> None:
        self._separator = separator

    def encode(self, event: Event) -> bytes | None:
        """Return operation, key and value."""
        return self._separator.join([event.op, str(event.values("key")), str(event.values())]).encode()

    def encode_key(self, event: Event) -> bytes | None:
        """Return the key alone."""
        return None if event.key is None else str(event.key["id"]).encode()

    def encode_control(self, control: Control) -> bytes | None:
        """Return the kind alone; none of a schema."""
        return None if control.kind == "schema" else str(control.kind).encode()


class Shelf:
    """An output: keeps records in a list, fails at its second write, and never takes one value."""

    def __init__(self, context: OutputContext, *, token: str = "", refuses: str = "") -> None:
        self._context, self._refuses = context, refuses
        CALLS.append(f"made {context.name} {context.secrets.get('settings.token', token)}")

    def open(self) -> str | None:
        """Open the shelf, which holds no checkpoint."""
        CALLS.append("open")
        return None

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        """Keep the records of whole transactions."""
        self._context.require_lease()
        assert checkpoint
        CALLS.append("write")
        if CALLS.count("write") == 2:
            raise OutputUnavailable("the shelf is locked")
        made = self._context.format
        for transaction in transactions:
            if transaction.control is not None:
                WRITTEN.append((None, made.encode_control(transaction.control)))
            for event in transaction.events:
                if (event.after or {}).get("v") == self._refuses:
                    raise EventRejected("no such value here", table=event.table, position=event.position)
                WRITTEN.append((made.encode_key(event), made.encode(event)))

    def close(self) -> None:
        """Close the shelf."""
        CALLS.append("close")


def test_foreign_classes_get_whole_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, secrets, a bootstrap with its control entries, a retry from the checkpoint, and a dead letter."""
    monkeypatch.setenv("SHELF_TOKEN", "secret")
    WRITTEN.clear()
    CALLS.clear()
    lake = OutputLake(tmp_path, {"shelf": {
        "class": f"{_HERE}:Shelf", "settings": {"token": "${env:SHELF_TOKEN}", "refuses": "3"},
        "format": f"{_HERE}:Words", "format_settings": {"separator": " | "}, "tables": ["public.t"],
    }})
    lake.deliver("shelf")
    assert CALLS == ["made shelf secret", "open", "write", "close"]
    assert WRITTEN == [
        (None, b"bootstrap_started"), (None, None), (b"1", b"r | {'id': '1'} | {'id': '1', 'v': 'a'}"),
        (None, b"bootstrap_finished"),
    ]
    for _ in range(3):
        lake.change()
    CALLS.clear()
    CALLS.append("write")
    lake.deliver("shelf")
    # It fails, is opened again, and gets all from the checkpoint; without the refused event at the second attempt.
    assert CALLS == ["write", "made shelf secret", "open", "write", "close", "open", "write", "write", "close"]
    written = [record for key, record in WRITTEN[4:] if key]
    assert [record for record in dict.fromkeys(written) if record] == [
        f"u | {{'id': '1'}} | {{'id': '1', 'v': '{n}'}}".encode() for n in (2, 4)
    ]
    assert lake.output("shelf")["dead_letters"] == 1
