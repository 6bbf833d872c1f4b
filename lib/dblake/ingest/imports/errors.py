"""The errors of files that cannot be imported: they name file and column, and never a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from dblake.base.core.errors import Unsupported

_EXPORT_AGAIN = "export the table again as docs/initial-load.md describes, then queue another dump import"


def file_error(file: str, problem: str, *, next_step: str = _EXPORT_AGAIN) -> Unsupported:
    """Return the error for a file whose content cannot be imported."""
    return Unsupported(f"file {file}: {problem}", next_step=next_step)


def column_error(column: str, type_: str, problem: str) -> Unsupported:
    """Return the error for a column whose values cannot be imported; ``naming_file`` adds the file."""
    return Unsupported(f"column {column} of type {type_}: {problem}", next_step=_EXPORT_AGAIN)


@contextmanager
def naming_file(file: str) -> Iterator[None]:
    """Name the file in every error of the block; Arrow's own text may quote values and is dropped."""
    try:
        yield
    except FileNotFoundError as error:
        raise Unsupported(
            f"file {file} does not exist where capture runs",
            next_step="put the file where capture can read it, or give an s3:// URL; then queue another dump import",
        ) from error
    except PermissionError as error:
        raise Unsupported(
            f"file {file} may not be read by capture's user",
            next_step="grant the user access to the file, then queue another dump import",
        ) from error
    except pa.ArrowInvalid as error:
        raise file_error(file, "it is damaged, or not of the given format") from error
    except Unsupported as error:
        if error.what.startswith("file "):
            raise
        raise Unsupported(f"file {file}: {error.what}", next_step=error.next_step) from error
