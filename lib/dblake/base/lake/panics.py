"""Keep what delta-rs prints while it fails out of a job's output.

On a full disk a thread of delta-rs panics and prints a trace of Rust's to the process's stderr, before delta-rs raises
an error that names the cause. Guarantee: within ``hidden_panics`` native code prints nothing; what Python prints
appears if ``sys.stderr`` has a descriptor of its own, as in every job.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_lock = threading.Lock()
_blocks = 0
_saved = -1


@contextmanager
def hidden_panics() -> Iterator[None]:
    """Discard what native code writes to stderr in the block; blocks of several threads may overlap."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _blocks, _saved
    with _lock:
        if _blocks == 0:
            _saved = os.dup(_STDERR)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, _STDERR)
            os.close(nothing)
        _blocks += 1


def _leave() -> None:
    global _blocks
    with _lock:
        _blocks -= 1
        if _blocks == 0:
            os.dup2(_saved, _STDERR)
            os.close(_saved)
