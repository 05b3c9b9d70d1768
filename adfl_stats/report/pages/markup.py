"""HTML by functions that escape what they are given."""

from __future__ import annotations

import html
from typing import Any

from adfl_stats._text import printable_lines

__all__ = ["Html", "joined", "paragraphs", "tag"]

_VOID = {"input", "meta", "br", "hr", "link"}


class Html(str):
    """Text that is HTML, and is not escaped again."""


def tag(name: str, /, *content: object, **attributes: Any) -> Html:
    """Return an element.

    Content that is not `Html` is escaped, and so are attributes. Names of attributes have dashes for underscores, and
    lose one at their end (``class_``, ``aria_sort``); None and False leave an attribute out, True gives it no value.

    Examples
    --------
    >>> tag("th", "a < b", scope="col", class_=None)
    '<th scope="col">a &lt; b</th>'
    """
    said = "".join(
        f" {key.removesuffix('_').replace('_', '-')}" + ("" if value is True else f'="{_escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{said}>" if name in _VOID else f"<{name}{said}>{joined(*content)}</{name}>")


def joined(*content: object) -> Html:
    """Return pieces one after the other; those that are not `Html` are escaped."""
    return Html("".join(part if isinstance(part, Html) else _escaped(part) for part in content))


def paragraphs(sentences: list[str], **attributes: Any) -> Html:
    """Return each sentence as a paragraph."""
    return joined(*(tag("p", sentence, **attributes) for sentence in sentences))


def _escaped(value: object) -> str:
    return html.escape(printable_lines(str(value)), quote=True)
