"""Parses the wal2json objects (format 2) that capture needs, as ``pgoutput`` does for its messages.

Row objects pass unparsed; their layouts are left to ``wal2json_layouts``. Objects: wal2json's README, "format-version
2".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dblake.core.errors import SourceError
from dblake.formats import wal2json as wal2json_format
from dblake.landing.columns import WAL2JSON
from dblake.source.postgres.settings import PostgresSettings

FORMAT = WAL2JSON
KIND_OFFSET = wal2json_format.LETTER

_OPTIONS = {
    "format-version": "2", "include-transaction": "true", "include-xids": "true", "include-timestamp": "true",
    "include-lsn": "true", "include-types": "true", "include-typmod": "true", "include-not-null": "true",
    "include-pk": "true", "actions": "insert,update,delete,truncate",
}
_EXACT_NUMBERS = {"numeric-data-types-as-string": "true"}
_BEGIN = re.compile(rb'"xid":(\d+),"timestamp":"([^"+]+)\+00","lsn":"([0-9A-F]+)/([0-9A-F]+)"')
_COMMIT = re.compile(rb'"nextlsn":"([0-9A-F]+)/([0-9A-F]+)"')


def stream_options(settings: PostgresSettings) -> Sequence[dict[str, str]]:  # noqa: ARG001 - it sends all tables
    """Return the options to start the stream with, the best first; versions up to 2.5 send NaN and infinity as null."""
    return _OPTIONS | _EXACT_NUMBERS, _OPTIONS


def parse_begins(payloads: Sequence[bytes]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the commit's ``lsn``, ``committed_at`` (microseconds since 1970) and 32-bit ``xid`` of Begin objects.

    Raises SourceError if an object has another layout.
    """
    begins = _BEGIN.findall(b"\n".join(payloads))
    if len(begins) != len(payloads):
        raise unknown_layout("a Begin object")
    times = np.array([time.decode() for _, time, _, _ in begins], "datetime64[us]")
    return {
        "lsn": np.array([_lsn(high, low) for *_, high, low in begins], np.int64),
        "committed_at": times.astype(np.int64),
        "xid": np.array([int(xid) for xid, *_ in begins], np.int64),
    }


def parse_commit_end(payload: bytes) -> int:
    """Return the LSN after the commit record: where the log resumes once this transaction has landed.

    Raises SourceError if the object has another layout.
    """
    match = _COMMIT.search(payload)
    if match is None:
        raise unknown_layout("a Commit object")
    return _lsn(*match.groups())


def split_truncate(payload: bytes) -> list[bytes]:
    """Return the one Truncate object: wal2json sends one for each table."""
    return [payload]


def parse_watermark(payload: bytes) -> tuple[int, str]:
    """Return id and value of the new row in an update of the watermark table; NULL (set by hand) becomes empty."""
    row = {column["name"]: column["value"] for column in json.loads(payload)["columns"]}
    return int(row["id"]), row["value"] or ""


def _lsn(high: bytes, low: bytes) -> int:
    return int(high, 16) << 32 | int(low, 16)


def unknown_layout(what: str) -> SourceError:
    """Return the error for an object that is not as this version of the format has it."""
    return SourceError(
        f"wal2json sent {what} with an unknown layout", next_step="report wal2json's version to dblake's maintainers"
    )
