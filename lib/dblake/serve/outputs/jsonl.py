"""JSON lines in files.

Place: an output of ``delivery``. Files have exactly-once effects: a small document beside them records the checkpoint
and the length of every file, and ``open`` cuts off what was written after it. Guarantee: one process at a time has the
files, wherever its subscription keeps a checkpoint; lines that the document does not cover are never overwritten. Files
are readable by their user only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dblake.base.core.durable_file import replace_file
from dblake.base.core.errors import ConfigError, Fenced, OutputUnavailable
from dblake.base.core.file_lock import FileLock
from dblake.base.core.names import folder, split_qualified
from dblake.serve.consume.model import Control, Event, Transaction
from dblake.serve.outputs.protocol import OutputContext

_CONTROL = "_control"
"""The ``{table}`` of control entries that concern no single table."""


class JsonlOutput:
    """Appends to files. ``path`` may have the placeholders ``{source}`` and ``{table}``."""

    holds_checkpoint = True

    def __init__(self, context: OutputContext, *, path: str) -> None:
        self._name, self._format, self._path = context.name, context.format, path
        head = path.partition("{")[0]
        directory, name = os.path.split(head)
        self._ledger = Path(directory) / f".{name or context.name}.checkpoint"
        self._lock = FileLock(self._ledger.with_name(f"{self._ledger.name}.lock"))
        self._files: dict[str, BinaryIO] = {}
        self._sizes: dict[str, int] = {}
        self._checkpoint: str | None = None

    def open(self) -> str | None:
        """Cut the files to the lengths at the last checkpoint, and return it; see Output."""
        try:
            self._ledger.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.acquire():
                raise Fenced(
                    f"output {self._name}: another process writes the files of {self._ledger}",
                    next_step="stop it, or leave the work to it",
                )
            self._sizes, self._checkpoint = {}, None
            if not self._ledger.exists():
                return None
            document = json.loads(self._ledger.read_text(encoding="utf-8"))
            self._sizes = {str(file): int(size) for file, size in document["sizes"].items()}
            self._checkpoint = document["checkpoint"]
            for file, size in self._sizes.items():
                self._cut(file, size)
            return self._checkpoint
        except (ValueError, KeyError, AttributeError):
            raise ConfigError(
                f"output {self._name}: {self._ledger} cannot be parsed",
                next_step="restore it, or move it and the files away",
            ) from None
        except OSError as error:
            raise self._unusable(error) from error

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:
        """Append the lines, then record the checkpoint; see Output."""
        try:
            for transaction in transactions:
                if transaction.control is not None:
                    self._append(transaction.control, self._format.encode_control(transaction.control))
                for event in transaction.events:
                    self._append(event, self._format.encode(event))
            for name, file in self._files.items():
                file.flush()
                os.fsync(file.fileno())
                self._sizes[name] = os.fstat(file.fileno()).st_size
            self._checkpoint = checkpoint
            self._record()
        except OSError as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        """Close the files; see Output."""
        files, self._files = self._files, {}
        try:
            for file in files.values():
                # What a full disk has kept in the buffer is written again from the checkpoint.
                with suppress(OSError):
                    file.close()
        finally:
            self._lock.release()

    def _append(self, entry: Event | Control, line: bytes | None) -> None:
        if line is None:
            return
        name = self._file_of(entry)
        file = self._files.get(name)
        if file is None:
            if name not in self._sizes:
                self._claim(name)
            file = self._files[name] = open(name, "ab", opener=_open_private)  # noqa: SIM115
        file.write(line + b"\n")

    def _claim(self, name: str) -> None:
        """Record a file as this output's before it has lines. Raises ConfigError for one that has some."""
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            raise ConfigError(
                f"output {self._name}: file {name} has lines that the checkpoint beside it, {self._ledger.name}, does "
                "not cover",
                next_step=f"move the file away, or restore {self._ledger} if it was lost; then run this again",
            )
        self._sizes[name] = 0
        self._record()

    def _file_of(self, entry: Event | Control) -> str:
        table = _CONTROL if entry.table is None else ".".join(folder(part) for part in split_qualified(entry.table))
        return self._path.replace("{source}", entry.source).replace("{table}", table)

    def _record(self) -> None:
        replace_file(self._ledger, json.dumps({"checkpoint": self._checkpoint, "sizes": self._sizes}).encode())

    def _cut(self, file: str, size: int) -> None:
        """Cut off what was written after the checkpoint; the file may be missing if nothing was before it."""
        actual = os.path.getsize(file) if os.path.exists(file) else 0
        if actual > size:
            os.truncate(file, size)
        elif actual < size:
            raise ConfigError(
                f"output {self._name}: file {file} has {actual} bytes, fewer than the {size} written",
                next_step="restore it; or move all files and the .checkpoint file beside them away, and start again",
            )

    def _unusable(self, error: OSError) -> OutputUnavailable | ConfigError:
        what = f"output {self._name}: {error.filename or self._ledger} cannot be written: {error.strerror}"
        if isinstance(error, (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)):
            where = f"outputs.{self._name}.path"
            return ConfigError(what, next_step=f"set {where} to a file in a folder that this user may write to")
        return OutputUnavailable(what, next_step="check the disk that holds it; then run this again")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
