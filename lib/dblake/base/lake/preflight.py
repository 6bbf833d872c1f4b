"""Check that the warehouse's object store does what the lake rests on: read, write, delete, and conditional writes.

Guarantee: a store that ignores ``If-None-Match`` is rejected before anything is committed to it, since two writers
would overwrite each other's commits there. What is written goes to a folder of its own, which is deleted again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import fs

from dblake.base.core.source import Check
from dblake.base.core.transient import storage_fault, transient_reason
from dblake.base.lake.files import filesystem
from dblake.base.lake.storage import is_s3, join
from dblake.base.lake.tables import create_table, open_table

_WRITERS = 8
_ROUNDS = 3
_CONTENT = b"dblake preflight\n" * 1000
"""Longer than an error's text, which Arrow reads into the space of the wanted bytes, and then cannot report."""


def check_storage(warehouse: str) -> list[Check]:
    """Return the checks of a warehouse on S3, up to the first that fails; none for any other."""
    if not is_s3(warehouse):
        return []
    folder = join(warehouse, "_preflight", uuid.uuid4().hex)
    steps: dict[str, Callable[[str], str]] = {
        "storage write": _write, "storage read": _read, "storage conditional write": _contest,
        "storage delete": _delete,
    }
    checks = list[Check]()
    for name, step in steps.items():
        try:
            fault = step(folder)
        except (OSError, DeltaError) as error:
            checks.append(_failed(name, error))
        else:
            fix = "use a store that honours If-None-Match; docs/object-storage.md names some" if fault else ""
            checks.append(Check(name, not fault, fault, fix))
        if not checks[-1].ok:
            break
    return checks


def _failed(name: str, error: Exception) -> Check:
    fault = storage_fault(error)
    if fault:
        return Check(name, False, fault.reason, fault.next_step)
    reason = transient_reason(error) or "the store fails in a way that is not known"
    return Check(name, False, reason, "correct `storage.endpoint`, or give this machine access to it")


def _write(folder: str) -> str:
    system, base = filesystem(folder)
    with system.open_output_stream(f"{base}/object") as out:
        out.write(_CONTENT)
    return ""


def _read(folder: str) -> str:
    system, base = filesystem(folder)
    with system.open_input_stream(f"{base}/object") as source:
        content = source.read()
    listed = [entry.base_name for entry in system.get_file_info(fs.FileSelector(base))]
    return "" if content == _CONTENT and listed == ["object"] else "the store returns other objects than were written"


def _contest(folder: str) -> str:
    """Commit one transaction identifier by several writers at once: the store must accept one of them."""
    for number in range(_ROUNDS):
        table = join(folder, f"table{number}")
        create_table(table, pa.schema([("n", pa.int64())]))
        writers = [open_table(table) for _ in range(_WRITERS)]
        with ThreadPoolExecutor(_WRITERS) as pool:
            accepted = sum(pool.map(_has_committed, writers))
        if accepted != 1:
            return f"the store accepted {accepted} of {_WRITERS} commits made at once: it ignores If-None-Match"
    return ""


def _has_committed(table: DeltaTable) -> bool:
    try:
        write_deltalake(
            table, pa.table({"n": [1]}), mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("preflight", 1)]),
        )
    except CommitFailedError:
        return False
    return True


def _delete(folder: str) -> str:
    system, base = filesystem(folder)
    # Arrow leaves an empty object for the folder above.
    system.delete_dir(base)
    return ""
