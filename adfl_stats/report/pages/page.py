"""A page: one file with style and script inside, which loads nothing."""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path

from adfl_stats._files import place_of, replacing
from adfl_stats.report.pages.markup import Html, joined, tag

__all__ = ["Section", "page", "write"]


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Parameters
    ----------
    key : str
        Its identifier.
    title : str
        Its heading.
    content : Html
        What it holds.
    """

    key: str
    title: str
    content: Html


def page(title: str, words: str, sections: Sequence[Section]) -> Html:
    """Return a page.

    Its policy of contents lets the browser run this style and this script and load nothing, whatever a label holds.

    Parameters
    ----------
    title, words : str
        The heading, and the line below it.
    sections : sequence of Section
        The parts.
    """
    style, script = (_resource(name) for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    if not isinstance(title, str):
        raise TypeError(f"title is {title!r} ({type(title).__name__}); give text")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    links = [tag("li", tag("a", part.title, href=f"#{part.key}")) for part in sections]
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag(
            "header",
            tag("h1", title),
            tag("p", words),
            tag("button", "Dark", type="button", id="theme", aria_pressed="false", hidden=True),
        ),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag(
            "main",
            *(
                tag(
                    "section",
                    tag("h2", part.title, id=f"{part.key}-heading"),
                    part.content,
                    id=part.key,
                    aria_labelledby=f"{part.key}-heading",
                )
                for part in sections
            ),
            id="content",
        ),
        tag("footer", tag("p", f"Made by adfl_stats {_version()} on {datetime.date.today().isoformat()}.")),
        tag("div", id="tip", role="status", hidden=True),
        tag("script", Html(script)),
    )
    return joined(Html("<!doctype html>\n"), tag("html", head, body, lang="en"), Html("\n"))


def write(path: str | PathLike[str], make: Callable[[], Html]) -> Path:
    """Make a page and write it to a file; return where it is. A path that cannot be written fails before the work."""
    target = place_of(path, "path")
    target = target if target.suffix else target.with_name(target.name + ".html")
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"path is {str(path)!r}; a report is a page: give a name that ends in .html")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is {str(path)!r}, but there is no folder {str(target.parent)!r}; make it first")
    text = make().encode()
    with replacing(target) as file:
        file.write(text)
    return target


def _resource(name: str) -> str:
    return resources.files("adfl_stats.report.pages").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the hash by which a browser recognises an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("adfl-stats")
    except PackageNotFoundError:  # pragma: no cover - a source tree that was never installed
        return ""
