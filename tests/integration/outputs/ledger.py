"""An output for a group's members: they append to one file what they write, and when they begin to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dblake.serve.consume.model import Transaction
from dblake.serve.outputs.protocol import OutputContext


class Ledger:
    """Appends a line when a write begins and one with its events, each in one system call."""

    def __init__(self, context: OutputContext, *, path: str) -> None:
        self._path = path
        self._file = -1

    def open(self) -> str | None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return None

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        (partition,) = {one.partition for one in transactions}
        events = [[e.table, (e.key or {})["id"], str(e.position)] for one in transactions for e in one.events]
        self._append(partition=partition)
        time.sleep(0.01)
        self._append(partition=partition, events=events)
        time.sleep(0.01)

    def close(self) -> None:
        os.close(self._file)

    def _append(self, **line: Any) -> None:
        os.write(self._file, (json.dumps({"member": os.getpid(), **line}) + "\n").encode())


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]
