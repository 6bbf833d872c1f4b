"""The base of all configuration sections: unknown keys are rejected, values are immutable and never coerced."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


def shown_default(text: str) -> dict[str, Any]:
    """Return field extras that make the reference page show ``text`` for a key whose default is computed."""
    return {"default": text}
