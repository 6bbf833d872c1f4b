"""The section ``mask``: rules for columns that are masked before landing.

Guarantee: every rule can be applied, and hashed columns have a key. Whether a rule matches a table is left to
``dblake.mask``.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dblake.base.core.mask_rules import Rule
from dblake.base.core.names import TableFilter
from dblake.config.references import KeyReference, parse_reference
from dblake.config.section import Section


class MaskConfig(Section):
    """Columns that are masked before landing."""

    key: KeyReference | None = Field(
        None, description="The key of `hash`, 16 bytes or more: ${env:NAME} or ${file:PATH}."
    )
    tables: dict[str, dict[str, Rule]] = Field(
        default_factory=dict,
        description="Globs on schema.table → column → drop, hash, or {truncate: N} for the first N characters.",
    )

    @field_validator("key", mode="before")
    @classmethod
    def _parse_key(cls, reference: Any, info: ValidationInfo) -> KeyReference | None:
        return None if reference is None else parse_reference(KeyReference, reference, "mask.key", info)

    @field_validator("tables", mode="before")
    @classmethod
    def _parse_rules(cls, rules_by_pattern: Any) -> dict[str, dict[str, Rule]]:
        if not isinstance(rules_by_pattern, dict):
            raise ValueError("must be table patterns, each with its columns")
        TableFilter([str(pattern) for pattern in rules_by_pattern])
        for pattern, columns in rules_by_pattern.items():
            if str(pattern).startswith("!"):
                raise ValueError(f"{pattern} excludes tables, which only source.tables can")
            if not isinstance(columns, dict) or not columns:
                raise ValueError(f"{pattern} must list its columns, each with drop, hash or {{truncate: N}}")
        return {str(pattern): {str(column): _parse_rule(f"{pattern}, column {column}", rule) for column, rule in
                               columns.items()}
                for pattern, columns in rules_by_pattern.items()}

    @model_validator(mode="after")
    def _require_key_for_hash(self) -> MaskConfig:
        if self.key is None and any(r.does == "hash" for columns in self.tables.values() for r in columns.values()):
            raise ValueError("key is missing: hashed columns need one")
        return self


def _parse_rule(where: str, rule: Any) -> Rule:
    if rule in ("drop", "hash"):
        return Rule(rule)
    length = rule.get("truncate") if isinstance(rule, dict) and len(rule) == 1 else None
    if type(length) is not int or length < 1:
        raise ValueError(f"{where}: must be drop, hash, or {{truncate: N}} with N at least 1")
    return Rule("truncate", length)
