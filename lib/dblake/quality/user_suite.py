"""The user's own suites: great-expectations suite files, one for each table, in a folder that the configuration names.

A file is named for its table, ``public.orders.json``, or says it as ``meta.table``. Promise: what is returned can be
evaluated as far as the files tell, and what cannot is a ConfigError with the file and every fault in it. Whether the
table is there, and has the columns, is told once it can be read.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dblake.core.errors import ConfigError
from dblake.core.names import abbreviated, split_qualified
from dblake.quality.suite import Expectation
from dblake.quality.validation import problem

_KNOWN = frozenset({"type", "kwargs", "meta", "notes", "description", "severity", "id", "rendered_content"})
_ALSO = ("meta", "notes", "severity")
_COLUMN, _COLUMNS = ("column", "column_A", "column_B"), ("column_list",)
_EXISTS = "expect_column_to_exist"
_PARAMETER = "$PARAMETER"


@dataclass(frozen=True, slots=True)
class UserSuite:
    """One file's expectations of one table."""

    file: Path
    table: str
    expectations: tuple[Expectation, ...]

    @property
    def name(self) -> str:
        """What the suite goes by among results."""
        return f"own/{self.file.name}"

    def require_columns(self, columns: Collection[str]) -> None:
        """Raises ConfigError for columns that the table's view has not."""
        there = {name.lower() for name in columns}
        missing = [
            f"{_where(place, e.type)}: {self.table} has no column {name}"
            for place, e in enumerate(self.expectations) if e.type != _EXISTS
            for name in _columns_of(e) if name.lower() not in there
        ]
        if missing:
            raise _refused(self.file, missing)


def read_suites(folder: str) -> list[UserSuite]:
    """All suites of a folder, by file name."""
    if not Path(folder).is_dir():
        raise ConfigError(
            f"quality.suites: there is no folder {folder}", next_step="make it, or take the key out of the file"
        )
    return [read_suite(file) for file in sorted(Path(folder).glob("*.json"))]


def read_suite(file: Path) -> UserSuite:
    """One file."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(file, [f"it cannot be read: {error.strerror}"]) from None
    except json.JSONDecodeError as error:
        raise _refused(file, [f"line {error.lineno} is not JSON: {error.msg}"]) from None
    except ValueError:
        raise _refused(file, ["it is not text in UTF-8"]) from None
    if not isinstance(document, dict) or not isinstance(document.get("expectations"), list):
        raise _refused(file, ["it has no list of expectations"])
    if not document["expectations"]:
        raise _refused(file, ["its list of expectations is empty"])
    faults: list[str] = []
    found = [_read(place, given, faults) for place, given in enumerate(document["expectations"])]
    meta = document.get("meta")
    table = meta.get("table", file.stem) if isinstance(meta, dict) else file.stem
    try:
        split_qualified(table)
    except (TypeError, ValueError):
        faults.append("neither its name nor meta.table is a table, schema.table")
    if faults:
        raise _refused(file, faults)
    return UserSuite(file, table, tuple(e for e in found if e))


def unknown_table(suite: UserSuite, tables: Collection[str]) -> ConfigError:
    """The error for a suite of a table that is not there."""
    return ConfigError(
        f"{suite.file}: there is no table {suite.table} here; there are: {abbreviated(sorted(tables)) or 'none yet'}",
        next_step="name the file, or meta.table in it, after a table that has been captured and reconciled",
    )


def _read(place: int, given: Any, faults: list[str]) -> Expectation | None:
    """One expectation; what is wrong with it is added to the faults."""
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        faults.append(f"{_where(place)} has no type")
        return None
    where, kwargs = _where(place, given["type"]), given.get("kwargs", {})
    if not isinstance(kwargs, dict):
        faults.append(f"{where}: its kwargs are no object")
        return None
    alien = sorted(given.keys() - _KNOWN)
    if alien:
        faults.append(f"{where}: {', '.join(alien)} is no part of an expectation")
        return None
    if any(isinstance(value, dict) and _PARAMETER in value for value in kwargs.values()):
        faults.append(f"{where}: parameters are not supported, write the value itself")
        return None
    also = {name: given[name] for name in _ALSO if given.get(name)}
    expectation = Expectation(given["type"], kwargs, given.get("description") or "", also=also)
    expectation = Expectation(expectation.type, kwargs, expectation.says,
                              ", ".join(_columns_of(expectation)) or None, also)
    wrong = problem(expectation)
    if wrong:
        faults.append(f"{where}: {wrong}")
    return expectation


def _columns_of(expectation: Expectation) -> list[str]:
    found = [expectation.kwargs[name] for name in _COLUMN if name in expectation.kwargs]
    for name in _COLUMNS:
        found += expectation.kwargs.get(name) or []
    return [column for column in found if isinstance(column, str)]


def _where(place: int, kind: str = "") -> str:
    return f"expectation {place + 1}" + (f" ({kind})" if kind else "")


def _refused(file: Path, faults: list[str]) -> ConfigError:
    return ConfigError(f"{file}: {'; '.join(faults)}", next_step="mend the file; docs/quality.md shows one")
