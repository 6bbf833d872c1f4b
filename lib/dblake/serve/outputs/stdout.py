"""Lines on stdout.

Place: the output of ``delivery`` that needs no configuration. Guarantee: lines are flushed before a checkpoint is
saved, and the run ends once their reader has ended, also while no event comes.
"""

from __future__ import annotations

import io
import select
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO

from dblake.serve.consume.model import Transaction
from dblake.serve.outputs.protocol import OutputContext


def stop_without_reader(stop: threading.Event) -> None:
    """Set ``stop`` when the reader of the pipe on stdout ends, or the terminal closes."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return
    poll = select.poll()
    # Errors and hang-ups are always reported; a file has neither, so the thread waits until the process ends.
    poll.register(descriptor, 0)

    def wait() -> None:
        poll.poll()
        stop.set()

    threading.Thread(target=wait, name="stdout", daemon=True).start()


class StdoutOutput:
    """Writes lines to stdout. It holds no checkpoint: a reader of the pipe may have lost lines already written."""

    def __init__(self, context: OutputContext, stream: BinaryIO | None = None) -> None:
        self._format, self._stream = context.format, stream or sys.stdout.buffer

    def open(self) -> str | None:
        """Return None, for no checkpoint; see Output."""
        return None

    def write(self, transactions: Sequence[Transaction], checkpoint: str) -> None:  # noqa: ARG002 - the caller stores it
        """Write the lines and flush them; see Output."""
        for transaction in transactions:
            lines = [self._format.encode_control(transaction.control)] if transaction.control is not None else []
            self._stream.writelines(line + b"\n" for line in lines if line is not None)
            encoded = map(self._format.encode, transaction.events)
            self._stream.writelines(line + b"\n" for line in encoded if line is not None)
        self._stream.flush()

    def close(self) -> None:
        """Leave standard output open; see Output."""
