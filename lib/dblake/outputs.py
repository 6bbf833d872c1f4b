"""Write an output of your own in Python: the public names of outputs.

Place: the front of ``serve.outputs``. ``docs/consumers.md`` is the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dblake.base.core.errors import EventRejected, OutputUnavailable
from dblake.base.core.schema import Column, TableSchema
from dblake.serve.consume.model import Control, ControlKind, Event, Image, Transaction
from dblake.serve.outputs.native import json_image
from dblake.serve.outputs.protocol import Format, Output, OutputContext

if TYPE_CHECKING:
    from dblake.serve.outputs.sql.output import SqlOutput

__all__ = [
    "Column", "Control", "ControlKind", "Event", "EventRejected", "Format", "Image", "Output", "OutputContext",
    "OutputUnavailable", "SqlOutput", "TableSchema", "Transaction", "json_image",
]


def __getattr__(name: str) -> Any:
    """Return ``SqlOutput``, which needs the driver of a target, when it is used."""
    if name == "SqlOutput":
        from dblake.serve.outputs.sql.output import SqlOutput

        return SqlOutput
    raise AttributeError(name)
