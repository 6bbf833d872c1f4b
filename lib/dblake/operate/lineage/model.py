"""What a run reads and writes, before it is put into OpenLineage's words.

Place: between ``lake``, which reads it, and ``events``, which words it. Guarantee: names and types only, never values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dblake.base.core.mask_rules import Rule


class DatasetName(NamedTuple):
    """A dataset's name by OpenLineage's conventions: ``namespace`` is the store, ``name`` the table or path in it."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The column that a column is made from, and the rule that masked it on the way."""

    dataset: DatasetName
    column: str
    mask: Rule | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table or file: ``columns`` are types by name, ``origins`` the column that each is made from.

    ``version`` is a Delta table's. Without ``columns`` the dataset is named only.
    """

    name: DatasetName
    columns: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """What a run reads, and what it writes."""

    inputs: Sequence[Dataset] = ()
    outputs: Sequence[Dataset] = ()


ReadFlow = Callable[[], Flow]
"""Reads what a run reads and writes, as it is now."""
