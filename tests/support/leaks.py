"""Looks for values that should not be there: in every file below a folder, in files of columns after unpacking them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def leaks(folder: Path, *values: str) -> list[str]:
    """The files that hold one of the values, in any case of letters, or as hex."""
    found = []
    looked = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        looked += 1
        said = file.read_bytes().lower()
        if file.suffix == ".parquet":
            # As one writes Python: bytes that are letters stand as letters.
            said += str(pq.read_table(file).to_pydict()).encode(errors="replace").lower()
        found += [f"{file.relative_to(folder)}: {value}" for value in values
                  if any(form in said for form in (value.lower().encode(), value.encode().hex().encode()))]
    assert looked, "an empty folder shows nothing"
    return found
