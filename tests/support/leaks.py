"""Search for values that must not leave the source: in every file below a folder, Parquet files uncompressed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def find_leaks(folder: Path, *values: str) -> list[str]:
    """Return ``"file: value"`` for every file that contains one of the values, as text in any case or as hex.

    Raises AssertionError for an empty folder, in which nothing could leak.
    """
    leaks = []
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for file in files:
        content = file.read_bytes().lower()
        if file.suffix == ".parquet":
            # Python's repr shows the ASCII letters of binary values.
            content += str(pq.read_table(file).to_pydict()).encode(errors="replace").lower()
        leaks += [f"{file.relative_to(folder)}: {value}" for value in values
                  if any(form in content for form in (value.lower().encode(), value.encode().hex().encode()))]
    assert files, f"no files below {folder}"
    return leaks
