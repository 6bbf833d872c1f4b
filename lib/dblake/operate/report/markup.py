"""Elements of HTML and SVG, made so that no text can become markup.

Place: below every part of the page. Guarantee: everything that is not ``Html`` already is escaped, attributes included.
Control characters, which no page may hold, are replaced.
"""

from __future__ import annotations

import html
import re

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_VOID = frozenset({"meta", "br", "path", "rect", "line"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return text as markup that shows it; ``Html`` is returned as it is."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))))


def join(*parts: object) -> Html:
    """Return parts one after another; None is left out."""
    return Html("".join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element; ``cls`` is the attribute class, other underscores are hyphens, None leaves one out."""
    written = "".join(
        f' {"class" if key == "cls" else key.replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items() if value is not None
    )
    if name in _VOID and not children:
        return Html(f"<{name}{written}{'/' if name in ('path', 'rect', 'line') else ''}>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def name_of(text: str) -> Html:
    """Return a database's name, isolated from the direction of the text around it."""
    return tag("bdi", text, cls="name")
