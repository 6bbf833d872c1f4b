"""The character sets of MySQL and MariaDB that dblake decodes, each with its Python codec and the differences.

``mysql_types`` spells them into column types; decoding turns their bytes into UTF-8. Guarantee: a character set that
is not here is rejected by name. Validating bytes is left to decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dblake.base.core.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Charset:
    """A character set: the longest character's size in bytes, and the closest of Python's codecs.

    ``differs`` maps the codec's character to the server's where they read the same bytes differently. ``controls`` is
    true if bytes without a character in the codec are control characters of the same number.
    """

    max_bytes: int
    codec: str
    differs: Mapping[str, str] = field(default_factory=dict)
    controls: bool = False


def _by_codec(max_bytes: int, **codecs: str) -> dict[str, Charset]:
    return {name: Charset(max_bytes, codec) for name, codec in codecs.items()}


# Compared with the servers' own conversions, byte by byte. To the server some pairs of byte sequences are one character
# (a second backslash in sjis and ujis, a second slash in big5). The codec keeps them apart, so two keys never become
# one. Only cp932 and big5 themselves contain some characters twice.
CHARSETS: Mapping[str, Charset] = {
    **_by_codec(
        1, binary="utf-8", ascii="ascii", latin2="iso8859_2", latin5="iso8859_9", latin7="iso8859_13", cp850="cp850",
        cp852="cp852", cp1250="cp1250", cp1251="cp1251", cp1256="cp1256", cp1257="cp1257", koi8r="koi8_r",
        macroman="mac_roman", macce="mac_latin2", tis620="tis_620",
    ),
    **_by_codec(2, gbk="gbk", gb2312="gb2312", cp932="cp932", sjis="shift_jis", euckr="cp949", ucs2="utf-16-be"),
    **_by_codec(3, utf8mb3="utf-8", ujis="euc_jp"),
    **_by_codec(4, utf8mb4="utf-8", utf16="utf-16-be", utf16le="utf-16-le", utf32="utf-32-be"),
    "gb18030": Charset(4, "gb18030", {"\ue7c7": "\u1e3f", "\u1e3f": "\ue7c7"}),
    "latin1": Charset(1, "cp1252", controls=True),
    "cp866": Charset(1, "cp866", {"\u2116": "\u207f", "\u00a4": "\u00b2"}),
    "greek": Charset(1, "iso8859_7", {"\u2018": "\u02bd", "\u2019": "\u02bc"}),
    "hebrew": Charset(1, "iso8859_8", {"\u00af": "\u203e"}),
    "koi8u": Charset(1, "koi8_u", {"\u2219": "\u2022"}),
    "big5": Charset(2, "cp950", dict(zip("‧﹑¯～⊕⊙￥￠￡", "•､‾∼♁☉¥¢£", strict=True))),
}


def charset_named(name: str) -> Charset:
    """Return the character set of that name. Raises Unsupported if dblake does not decode it."""
    if name not in CHARSETS:
        raise Unsupported(
            f"the character set {name} is not one dblake decodes",
            next_step="take the table out of source.tables, or ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4",
        )
    return CHARSETS[name]
