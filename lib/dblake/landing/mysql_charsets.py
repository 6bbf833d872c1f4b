"""The character sets of MySQL and MariaDB that dblake reads, and how.

Beside ``mysql_types``, which spells them into column types; decoding turns their bytes into UTF-8. Promise: a
character set that is not here is refused by name. Which bytes are text is left to decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dblake.core.errors import UnsupportedByName


@dataclass(frozen=True, slots=True)
class Charset:
    """``most`` bytes a character may take; ``codec`` is Python's name for the closest encoding it knows."""

    most: int
    codec: str


CHARSETS: Mapping[str, Charset] = {
    "binary": Charset(1, "utf-8"),
    "utf8mb4": Charset(4, "utf-8"), "utf8mb3": Charset(3, "utf-8"), "ascii": Charset(1, "ascii"),
    "latin1": Charset(1, "cp1252"), "latin2": Charset(1, "iso8859_2"), "latin5": Charset(1, "iso8859_9"),
    "latin7": Charset(1, "iso8859_13"), "greek": Charset(1, "iso8859_7"), "hebrew": Charset(1, "iso8859_8"),
    "cp850": Charset(1, "cp850"), "cp852": Charset(1, "cp852"), "cp866": Charset(1, "cp866"),
    "cp1250": Charset(1, "cp1250"), "cp1251": Charset(1, "cp1251"), "cp1256": Charset(1, "cp1256"),
    "cp1257": Charset(1, "cp1257"), "koi8r": Charset(1, "koi8_r"), "koi8u": Charset(1, "koi8_u"),
    "macroman": Charset(1, "mac_roman"), "macce": Charset(1, "mac_latin2"), "tis620": Charset(1, "tis_620"),
    "big5": Charset(2, "big5hkscs"), "gbk": Charset(2, "gbk"), "gb2312": Charset(2, "gb2312"),
    "gb18030": Charset(4, "gb18030"), "sjis": Charset(2, "shift_jis"), "cp932": Charset(2, "cp932"),
    "ujis": Charset(3, "euc_jp"), "eucjpms": Charset(3, "euc_jp"), "euckr": Charset(2, "euc_kr"),
    "ucs2": Charset(2, "utf-16-be"), "utf16": Charset(4, "utf-16-be"), "utf16le": Charset(4, "utf-16-le"),
    "utf32": Charset(4, "utf-32-be"),
}


def charset_named(name: str) -> Charset:
    """The character set of that name; raises UnsupportedByName if dblake does not read it."""
    if name not in CHARSETS:
        raise UnsupportedByName(
            f"the character set {name} is not one dblake reads",
            next_step="take the table out of source.tables, or ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4",
        )
    return CHARSETS[name]
