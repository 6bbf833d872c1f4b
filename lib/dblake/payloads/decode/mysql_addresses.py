"""Read MariaDB's UUIDs and network addresses from the binlog as text.

Called by ``binlog_columns``, beside ``mysql_numbers``. Guarantee: the text is what the server prints.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address
from itertools import groupby

import numpy as np
import pyarrow as pa

from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.mysql_characters import fixed
from dblake.payloads.decode.mysql_columns import Text
from dblake.payloads.decode.mysql_text import HEX_PAIRS, padded
from dblake.payloads.formats.mysql_types import FIXED


def read_uuid(cells: Cells) -> Text:
    """Read UUIDs: 16 bytes in the order of their digits."""
    raw, wrong = padded(cells, FIXED["uuid"])
    digits = HEX_PAIRS[np.frombuffer(raw.buffers()[2], np.uint8)].view(np.uint8).reshape(-1, 32)
    dash = np.full((len(cells), 1), ord("-"), np.uint8)
    parts = [digits[:, :8], digits[:, 8:12], digits[:, 12:16], digits[:, 16:20], digits[:, 20:]]
    return Text(fixed(np.hstack([piece for part in parts for piece in (part, dash)][:-1])), wrong=wrong)


def read_address(cells: Cells, width: int) -> Text:
    """Read addresses, each distinct one once."""
    raw, wrong = padded(cells, width)
    distinct = raw.dictionary_encode()
    read = _ipv4 if width == FIXED["inet4"] else _ipv6
    return Text(pa.array(map(read, distinct.dictionary.to_pylist()), pa.string()).take(distinct.indices), wrong=wrong)


def _ipv4(value: bytes) -> str:
    return str(IPv4Address(value))


def _ipv6(value: bytes) -> str:
    """Return an IPv6 address as MariaDB prints it.

    The first of the longest runs of zeros is left out, even a single zero; IPv4 addresses in it are printed as such.
    """
    words = struct.unpack(">8H", value)
    zeros = max((len(list(run)) for zero, run in groupby(words, key=lambda word: word == 0) if zero), default=0)
    if not zeros:
        return ":".join(f"{word:x}" for word in words)
    start = next(index for index in range(8) if words[index : index + zeros] == (0,) * zeros)
    if start == 0 and (zeros == 6 or (zeros == 5 and words[5] == 0xFFFF)):
        return ("::" if zeros == 6 else "::ffff:") + _ipv4(value[12:])
    head, tail = (":".join(f"{word:x}" for word in part) for part in (words[:start], words[start + zeros :]))
    return f"{head}::{tail}"
