"""The user's own suites: great-expectations suite files, one per table, in the folder ``quality.suites``.

Place: between configuration and ``quality.run``. A file is named after its table, ``public.orders.json``, or names it
in ``meta.table``. Guarantee: a returned suite can be evaluated as far as its file shows; any other file raises
ConfigError with the file's name and all its faults. Whether the table exists and has the columns is left to
``quality.selection``, which reads it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dblake.base.core.errors import ConfigError
from dblake.base.core.names import abbreviated, split_qualified
from dblake.operate.quality.suite import Expectation
from dblake.operate.quality.validation import find_fault

USER_SUITE_PREFIX = "user/"
"""Prefix of these suites' names in results; built-in suites have none."""

_MEMBERS = frozenset({"type", "kwargs", "meta", "notes", "description", "severity", "id", "rendered_content"})
_EXTRA_MEMBERS = ("meta", "notes", "severity")
_COLUMN_KWARGS, _COLUMN_LIST_KWARGS = ("column", "column_A", "column_B"), ("column_list",)
_EXISTS = "expect_column_to_exist"
_PARAMETER = "$PARAMETER"


@dataclass(frozen=True, slots=True)
class UserSuite:
    """The expectations of one file, for one table."""

    file: Path
    table: str
    expectations: tuple[Expectation, ...]

    @property
    def name(self) -> str:
        """Return the suite's name in results: ``user/`` and the file's name."""
        return f"{USER_SUITE_PREFIX}{self.file.name}"

    def require_columns(self, columns: Collection[str]) -> None:
        """Raise ConfigError if an expectation names a column that the table's view does not have."""
        existing = {name.lower() for name in columns}
        missing = [
            f"{_describe(index, e.type)}: {self.table} has no column {name}"
            for index, e in enumerate(self.expectations) if e.type != _EXISTS
            for name in _columns_of(e) if name.lower() not in existing
        ]
        if missing:
            raise _invalid_file(self.file, missing)


def read_suites(folder: str) -> list[UserSuite]:
    """Read all ``*.json`` files of a folder, in the order of their names. Raises ConfigError as ``read_suite`` does."""
    if not Path(folder).is_dir():
        raise ConfigError(
            f"quality.suites: the folder {folder} does not exist", next_step="create it, or remove the key"
        )
    return [read_suite(file) for file in sorted(Path(folder).glob("*.json"))]


def read_suite(file: Path) -> UserSuite:
    """Read one suite file. Raises ConfigError with all faults of a file that is not a valid suite."""
    document = _read_document(file)
    faults: list[str] = []
    expectations = [_parse_expectation(index, member, faults) for index, member in enumerate(document["expectations"])]
    meta = document.get("meta")
    table = meta.get("table", file.stem) if isinstance(meta, dict) else file.stem
    try:
        split_qualified(table)
    except (TypeError, ValueError):
        faults.append("neither the file's name nor meta.table is a table name, schema.table")
    if faults:
        raise _invalid_file(file, faults)
    return UserSuite(file, table, tuple(expectation for expectation in expectations if expectation))


def unknown_table(suite: UserSuite, tables: Collection[str]) -> ConfigError:
    """Return the error for a suite whose table is not among ``tables``."""
    return ConfigError(
        f"{suite.file}: there is no table {suite.table}; tables: {abbreviated(sorted(tables)) or 'none yet'}",
        next_step="name the file, or its meta.table, after a table that has been captured and reconciled",
    )


def _read_document(file: Path) -> dict[str, Any]:
    """Return the file's JSON object, which has a list of at least one expectation."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _invalid_file(file, [f"the file cannot be read: {error.strerror}"]) from None
    except json.JSONDecodeError as error:
        raise _invalid_file(file, [f"line {error.lineno} is not JSON: {error.msg}"]) from None
    except ValueError:
        raise _invalid_file(file, ["the file is not UTF-8 text"]) from None
    if not isinstance(document, dict) or not isinstance(document.get("expectations"), list):
        raise _invalid_file(file, ["the file has no list of expectations"])
    if not document["expectations"]:
        raise _invalid_file(file, ["the list of expectations is empty"])
    return document


def _parse_expectation(index: int, member: Any, faults: list[str]) -> Expectation | None:
    """Return one expectation; append its fault to ``faults`` and return None if it is not valid."""
    if not isinstance(member, dict) or not isinstance(member.get("type"), str):
        faults.append(f"{_describe(index)} has no type")
        return None
    subject, kwargs = _describe(index, member["type"]), member.get("kwargs", {})
    if not isinstance(kwargs, dict):
        faults.append(f"{subject}: kwargs is not an object")
        return None
    unknown = sorted(member.keys() - _MEMBERS)
    if unknown:
        faults.append(f"{subject}: unknown members: {', '.join(unknown)}")
        return None
    if any(isinstance(value, dict) and _PARAMETER in value for value in kwargs.values()):
        faults.append(f"{subject}: parameters are not supported, write the value itself")
        return None
    extra = {name: member[name] for name in _EXTRA_MEMBERS if member.get(name)}
    expectation = Expectation(member["type"], kwargs, member.get("description") or "", extra=extra)
    expectation = replace(expectation, column=", ".join(_columns_of(expectation)) or None)
    fault = find_fault(expectation)
    if fault:
        faults.append(f"{subject}: {fault}")
        return None
    return expectation


def _columns_of(expectation: Expectation) -> list[str]:
    columns = [expectation.kwargs[name] for name in _COLUMN_KWARGS if name in expectation.kwargs]
    for name in _COLUMN_LIST_KWARGS:
        columns += expectation.kwargs.get(name) or []
    return [column for column in columns if isinstance(column, str)]


def _describe(index: int, kind: str = "") -> str:
    return f"expectation {index + 1}" + (f" ({kind})" if kind else "")


def _invalid_file(file: Path, faults: list[str]) -> ConfigError:
    return ConfigError(f"{file}: {'; '.join(faults)}", next_step="correct the file; docs/quality.md has an example")
