"""How numbers come about: pages of ``docs`` as HTML, the methodology first.

They are the same for everybody and hold nothing of a ledger. Markdown is read without raw HTML; links between
pages become links here, those to files that are not here become plain text, pictures become their words.
Headings have the anchors that GitHub gives them, so that a link holds in both places.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi import Path as InPath
from fastapi.responses import Response
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gpucost.access.principal import Principal
from gpucost.api.pages.page_layout import PageFrame, content
from gpucost.api.routes.requests import refuse_unknown_parameters
from gpucost.api.server.authentication import Reader, authenticate
from gpucost.api.server.errors import not_found
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.reports.base.glossary import docs_folder
from gpucost.reports.base.page_addresses import METHODOLOGY, method_page

router = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)], include_in_schema=False
)

DETECTORS = "detectors/README"
TOPICS = (
    *(METHODOLOGY, "reports", "waste", DETECTORS, "charges", "statements", "contracts", "prices", "teams"),
    *(
        "what-if",
        "digest",
        "advise",
        "explain",
        "advisor-rules",
        "inner-schedulers",
        "several-clusters",
        "sources",
    ),
    *("existing", "access", "glossary"),
)
"""The pages that are listed, in this order; those of single detectors are found through theirs."""
_FOLDER = "detectors"
_COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
_ALIGNED = "text-align:right"


@dataclass(frozen=True, slots=True)
class MethodPage:
    """One page of the docs: its title, its HTML, and the anchors of its headings."""

    title: str
    html: str
    anchors: tuple[str, ...]


@cache
def page_names() -> tuple[str, ...]:
    """The pages that there are, by their paths in ``docs`` without the ending."""
    folder = docs_folder()
    rules = sorted(f"{_FOLDER}/{each.stem}" for each in (folder / _FOLDER).glob("*.md"))
    return tuple(name for name in dict.fromkeys((*TOPICS, *rules)) if (folder / f"{name}.md").is_file())


@cache
def method_text(name: str) -> MethodPage:
    """The page ``name``, one of ``page_names``."""
    text = (docs_folder() / f"{name}.md").read_text("utf-8")
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = markdown.parse(_COMMENT.sub("", text))
    anchors = _anchored(tokens)
    for token in _all(tokens):
        _linked(token, name)
        _unstyled(token)
    title = next((tokens[n + 1].content for n, each in enumerate(tokens) if each.tag == "h1"), name)
    html = markdown.renderer.render(tokens, markdown.options, {})
    return MethodPage(title.replace("`", ""), _scrolling(html), anchors)


def _all(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from token.children or ()


def _anchored(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Gives every heading its id, as GitHub does: of equal ones the later have -1, -2."""
    seen: Counter[str] = Counter()
    found = []
    for n, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        words = "".join(each.content for each in tokens[n + 1].children or ())
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        anchor = f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1
        token.attrSet("id", anchor)
        found.append(anchor)
    return tuple(found)


def _linked(token: Token, name: str) -> None:
    """Turns a link between pages into one of this service; what leads nowhere here becomes text."""
    if token.type == "image":
        token.type, token.tag, token.children = "text", "", None
        return
    if token.type == "link_close" and token.meta.get("gone"):
        token.type, token.content = "text", ""
    if token.type != "inline" or not token.children:
        return
    gone = False
    for child in token.children:
        if child.type == "link_open":
            href = page_link(str(child.attrGet("href") or ""), name)
            gone = not href
            if gone:
                child.type, child.content = "text", ""
            else:
                child.attrSet("href", href)
        elif child.type == "link_close" and gone:
            child.meta["gone"] = True


def page_link(href: str, name: str) -> str:
    """Where ``href`` of the page ``name`` leads here; empty for a file that is not here."""
    if href.startswith(("https://", "http://", "#")):
        return href
    path, _, anchor = href.partition("#")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    stem = place.removesuffix(".md")
    return method_page(anchor, stem) if place.endswith(".md") and stem in page_names() else ""


def _unstyled(token: Token) -> None:
    """Cells say their alignment as a class: the policy of pages allows no style in attributes."""
    if token.type in ("th_open", "td_open"):
        style = str(token.attrs.pop("style", ""))
        if style != _ALIGNED:
            token.attrSet("class", "text")
        if token.type == "th_open":
            token.attrSet("scope", "col")


def _scrolling(html: str) -> str:
    """Tables and code that are wider than a screen scroll for themselves, by keyboard too."""
    html = html.replace(
        "<table>", '<div class="scroll" tabindex="0" role="region" aria-label="table">\n<table>'
    )
    return html.replace("</table>", "</table>\n</div>").replace("<pre>", '<pre tabindex="0">')


async def _page(request: Request, known: ApiServices, principal: Principal, name: str) -> Response:
    if name not in page_names():
        raise not_found("page", name, "no such page", ", ".join(page_names()))
    found = method_text(name)
    listed = [(each, method_text(each).title) for each in TOPICS if each in page_names()]
    middle = content(found.title, "method_page.html.j2", page=found, name=name, listed=listed)
    return await PageFrame(request, known, principal, "method").response(middle)


@router.get("/method")
async def show_methodology(request: Request, principal: Reader, known: KnownServices) -> Response:
    """How a number in a report is computed."""
    return await _page(request, known, principal, METHODOLOGY)


@router.get("/method/{page:path}")
async def show_method(
    request: Request,
    principal: Reader,
    known: KnownServices,
    page: Annotated[str, InPath(max_length=100, description="a page of the docs, such as waste")],
) -> Response:
    """One page of the docs."""
    return await _page(request, known, principal, page)
