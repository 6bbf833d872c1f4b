"""Split typed or piped text into statements at each ``;`` outside quotes and comments."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""--[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/)?|'(?:[^']|'')*'?|"(?:[^"]|"")*"?|`(?:[^`]|``)*`?|;|[^;'"`/-]+|.""",
    re.DOTALL,
)
_COMMENT = ("--", "/*")


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the complete statements of a text, without their ``;``, and what follows the last one."""
    statements, current = list[str](), ""
    for match in _TOKEN.finditer(text):
        if match[0] == ";":
            if not is_blank(current):
                statements.append(current.strip())
            current = ""
        else:
            current += match[0]
    return statements, "" if is_blank(current) and not _is_open(current) else current


def is_blank(text: str) -> bool:
    """Return True for a text of nothing but comments and blanks."""
    return all(token[0].startswith(_COMMENT) or token[0].isspace() for token in _TOKEN.finditer(text))


def _is_open(text: str) -> bool:
    """Return True for a text that ends within a comment of several lines."""
    tokens = [match[0] for match in _TOKEN.finditer(text)]
    return bool(tokens) and tokens[-1].startswith("/*") and not tokens[-1].endswith("*/")
