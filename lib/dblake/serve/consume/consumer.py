"""What an application overrides to be called with a subscription's changes, and what its callbacks answer.

Place: below ``callbacks``, which calls in the order of the Databus paper, section 3.6.
"""

from __future__ import annotations

from enum import Enum

from dblake.base.core.position import Position
from dblake.serve.consume.model import Control, Event


class Result(Enum):
    """What a callback answers.

    ``RETRY`` goes back to the last checkpoint. ``SKIP`` of ``on_event`` makes the event a dead letter; of another
    callback it counts as ``SUCCESS``. ``STOP`` ends the run without a checkpoint for the transaction. Only ``STOP``
    counts of ``on_rollback``, and nothing of ``on_error``: the run ends with the error.
    """

    SUCCESS = "success"
    RETRY = "retry"
    SKIP = "skip"
    STOP = "stop"


class Consumer:
    """A consumer with nothing to do: override what is needed."""

    def on_start_sequence(self, position: Position) -> Result:  # noqa: ARG002 - for subclasses
        """Begin a transaction; ``position`` is its end."""
        return Result.SUCCESS

    def on_start_source(self, source: str, table: str) -> Result:  # noqa: ARG002 - for subclasses
        """Begin consecutive events of one table."""
        return Result.SUCCESS

    def on_event(self, event: Event) -> Result:  # noqa: ARG002 - for subclasses
        """Handle one event of the transaction."""
        return Result.SUCCESS

    def on_end_source(self, source: str, table: str) -> Result:  # noqa: ARG002 - for subclasses
        """End consecutive events of one table."""
        return Result.SUCCESS

    def on_end_sequence(self, position: Position) -> Result:  # noqa: ARG002 - for subclasses
        """Handle the end of a transaction."""
        return Result.SUCCESS

    def on_control(self, control: Control) -> Result:  # noqa: ARG002 - for subclasses
        """Handle a control entry of the stream."""
        return Result.SUCCESS

    def on_checkpoint(self, position: Position) -> Result:  # noqa: ARG002 - for subclasses
        """Make everything up to ``position`` durable: a checkpoint is about to be saved."""
        return Result.SUCCESS

    def on_rollback(self) -> Result:
        """Undo what came after the last checkpoint: it comes again."""
        return Result.SUCCESS

    def on_error(self, error: Exception) -> Result:  # noqa: ARG002 - for subclasses
        """Handle the error that stops delivery."""
        return Result.SUCCESS
