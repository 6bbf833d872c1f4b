"""Length-encoded numbers and strings, as events have them, and lists of such.

Place: below every reader of an event's body. Content that is cut off raises IndexError or shortens the last value; that
an event is whole is left to its checksum.
"""

from __future__ import annotations

from collections.abc import Iterator


def read_packed(data: bytes, at: int) -> tuple[int, int]:
    """Return the length-encoded number at an offset, and the offset behind it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def read_numbers(data: bytes) -> list[int]:
    """Return all numbers of a list."""
    numbers, at = [], 0
    while at < len(data):
        number, at = read_packed(data, at)
        numbers.append(number)
    return numbers


def read_strings(data: bytes) -> list[bytes]:
    """Return all strings of a list."""
    strings, at = [], 0
    while at < len(data):
        size, at = read_packed(data, at)
        strings.append(data[at : at + size])
        at += size
    return strings


def read_labels(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield the labels of one column after another."""
    at = 0
    while at < len(data):
        count, at = read_packed(data, at)
        labels = []
        for _ in range(count):
            size, at = read_packed(data, at)
            labels.append(data[at : at + size])
            at += size
        yield tuple(labels)
