"""Load a configuration file and describe its faults.

Guarantee: a loaded configuration is complete and valid. Otherwise ConfigError names the file, the line and the dotted
key of every fault, and no secret. Whether dblake supports a server's version is checked by ``source``.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator

from dblake.base.core.errors import ConfigError
from dblake.config.airflow import AirflowConfig
from dblake.config.faults import describe_value
from dblake.config.file import ConfigFile
from dblake.config.models import Config
from dblake.config.outputs import OUTPUT_NAME, OUTPUT_TYPES
from dblake.config.source import SOURCE_NAME

_Model = TypeVar("_Model", bound=BaseModel)


class _NamedSource(BaseModel):
    name: str = Field(pattern=SOURCE_NAME)


class Scheduled(BaseModel):
    """The keys that DAGs are built from, and the names of the outputs; all others are left for the jobs to validate."""

    source: _NamedSource
    airflow: AirflowConfig = AirflowConfig()
    outputs: tuple[str, ...] = ()

    @field_validator("outputs", mode="before")
    @classmethod
    def _select_names(cls, outputs: Any) -> tuple[str, ...]:
        """Leave out what cannot be an output: every job of the run rejects the file for it."""
        names = outputs if isinstance(outputs, dict) else ()
        return tuple(name for name in names if isinstance(name, str) and re.fullmatch(OUTPUT_NAME, name))


def load_config(path: Path) -> Config:
    """Load and validate a configuration file. Relative paths in it are relative to the file's folder.

    Raises ConfigError with all faults of the file.
    """
    return _validate(Config, ConfigFile.read(path))


def load_airflow(path: Path) -> Scheduled:
    """Load what DAGs are built from. Raises ConfigError only for faults of these keys."""
    return _validate(Scheduled, ConfigFile.read(path))


def _validate(model: type[_Model], file: ConfigFile) -> _Model:
    try:
        return model.model_validate(file.content, context=file)
    except ValidationError as error:
        faults = [_describe_fault(file, e) for e in error.errors(include_input=False, include_url=False)]
        raise ConfigError("; ".join(faults), next_step="correct the file; conf/postgres.yaml shows every key") from None


def _describe_fault(file: ConfigFile, error: Any) -> str:
    parts, section = [str(part) for part in error["loc"]], None
    if parts[0] == "outputs" and len(parts) > 2:
        # After an output's name, pydantic inserts its type.
        section = OUTPUT_TYPES.get(parts.pop(2))
    where = file.where(".".join(parts))
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "extra_forbidden":
        keys = _field_keys(section) if section and len(parts) == 3 else _section_keys(parts[:-1])
        near = difflib.get_close_matches(parts[-1], keys, n=1)
        return f"{where} is not a key" + (f", did you mean {near[0]}?" if near else "")
    return f"{where}: {describe_value(error)}"


def _section_keys(section: list[str]) -> list[str]:
    """Return the keys of a section; none if the path does not lead to a section."""
    model: type[BaseModel] = Config
    for part in section:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return _field_keys(model)


def _field_keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
