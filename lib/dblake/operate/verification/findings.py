"""The wrong rows of a table, by all readings of it together.

Place: above the ledger. ``run`` asks which keys a reading is about; ``requests``, ``status`` and ``check`` ask how many
rows are wrong. Guarantee: a row that was found wrong stays wrong until a reading has compared its key. A key that a
reading had to skip keeps what was found before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dblake.operate.verification.ledger import RoundSummary


@dataclass(frozen=True, slots=True)
class WrongRows:
    """The wrong rows of a table, as pairs of kind and key; ``unlisted`` counts by kind those whose key is not known.

    ``skipped`` are the wrong keys that the newest reading could not compare.
    """

    wrong: frozenset[tuple[str, str]] = frozenset()
    unlisted: Mapping[str, int] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """The number of wrong rows."""
        return len(self.wrong) + sum(self.unlisted.values())

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The wrong keys in order; None if not all are known."""
        return None if any(self.unlisted.values()) else tuple(sorted({key for _, key in self.wrong}))

    def count_kind(self, kind: str) -> int:
        """Return the number of rows of a kind: ``missing``, ``extra`` or ``different``."""
        return sum(each == kind for each, _ in self.wrong) + self.unlisted.get(kind, 0)

    def after(self, reading: RoundSummary) -> WrongRows:
        """Return what is known after one more reading of the table, or of all these keys."""
        if reading.repeat or not reading.is_complete:
            return self
        skipped = frozenset(reading.skipped_keys)
        kept = {(kind, key) for kind, key in self.wrong if key in skipped}
        # Any of the rows that a whole reading skipped may be one that was wrong.
        unlisted = {
            kind: count + min(self.unlisted.get(kind, 0), reading.rows_skipped)
            for kind, count in reading.unlisted.items()
        }
        return WrongRows(reading.wrong | kept, unlisted, skipped)


def find_wrong(readings: Iterable[RoundSummary]) -> WrongRows:
    """Return the wrong rows by all readings of one table, oldest first."""
    finding = WrongRows()
    for reading in readings:
        finding = finding.after(reading)
    return finding
