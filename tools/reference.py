"""Generate the configuration reference, ``docs/configuration.md``, from the models that parse the file.

    python -m tools.reference > docs/configuration.md

Every key has its line, and no line describes a removed key.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dblake.config import Config
from dblake.mask.rules import Rule

_HEAD = """# Configuration

Every key there is, by section; an unknown one is an error that names it.
[conf/postgres.yaml](../conf/postgres.yaml) and [conf/mysql.yaml](../conf/mysql.yaml) are complete files to start from.
Relative paths are relative to the file. Passwords and keys are references, `${env:NAME}` or `${file:PATH}`.

Made by `python -m tools.reference`."""


def markdown() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_section("", Config)]) + "\n"


def _section(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    nested = {name: inner for name, field in model.model_fields.items() if (inner := _model(field.annotation))}
    own = {name: field for name, field in model.model_fields.items() if name not in nested}
    if own:
        yield f"\n## {prefix or 'The file'}\n\n{(model.__doc__ or '').strip()}\n"
        yield "| key | holds | default | |\n| --- | --- | --- | --- |"
        for name, field in own.items():
            yield f"| `{prefix}{'.' if prefix else ''}{name}` | {_kind(field)} | {_default(field)} | {_text(field)} |"
    for name, inner in nested.items():
        yield from _section(f"{prefix}{'.' if prefix else ''}{name}", inner)


def _model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _kind(field: FieldInfo) -> str:
    return _describe_type(field.annotation)


def _describe_type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if parts and type(None) in parts:
        rest = [part for part in parts if part is not type(None)]
        return f"{' or '.join(map(_describe_type, rest))}, or `null`"
    if origin in (Union, UnionType):
        return " or ".join(map(_describe_type, parts))
    if origin in (tuple, list):
        return f"list of {_describe_type(parts[0])}"
    if origin is dict:
        return f"map to {_describe_type(parts[1])}"
    words = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`", Rule: "rule"}
    return words.get(annotation, "reference")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "must be given" if field.default_factory is None else "none"
    if field.default is None:
        return "`null`"
    unset = field.default in ("", 0, ()) and not isinstance(field.default, (bool, float))
    return "none, or by type and name" if unset else f"`{field.default}`"


def _text(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
