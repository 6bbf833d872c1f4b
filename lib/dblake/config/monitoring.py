"""The sections ``status``, ``verify`` and ``quality``: what counts as a problem of a source's tables.

Place: sections of ``models``. Invariants that always hold are left to the package ``quality``.
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from dblake.config.file import ConfigFile
from dblake.config.section import Section

AGE = r"^[1-9][0-9]*[smhd]$"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class StatusConfig(Section):
    """What `status` reports as a problem."""

    late_seconds: float = Field(
        120.0, gt=0,
        description="Lag after which `status` reports a stage as `late`, in seconds; set it above the interval "
                    "between two runs.",
    )


class VerifyConfig(Section):
    """Comparing state with the source: `verify`."""

    max_age: str | None = Field(
        None, pattern=AGE,
        description="Age after which `status` reports a table's newest verification: a number and s, m, h or d, such "
                    "as 24h; null: never.",
    )
    sample: float = Field(1.0, gt=0, le=1, description="Share of each table's key ranges that `verify` reads.")

    @property
    def max_age_seconds(self) -> float | None:
        """``max_age`` in seconds; None if verification has no age limit."""
        return None if self.max_age is None else float(self.max_age[:-1]) * _SECONDS[self.max_age[-1]]


class QualityConfig(Section):
    """What `check` validates besides its own invariants."""

    suites: str | None = Field(
        None, min_length=1, description="Folder of great-expectations suites, one JSON file per table."
    )

    @field_validator("suites")
    @classmethod
    def _resolve_suites(cls, folder: str | None, info: ValidationInfo) -> str | None:
        return None if folder is None else ConfigFile.of(info.context).beside(folder)
