"""What tests read of a page: rows of its tables as text, figures, links."""

from __future__ import annotations

import re
from html import unescape

from httpx2 import Response

HTML = {"Accept": "text/html"}
_TAG = re.compile(r"<[^>]*>")


def section(page: str, key: str) -> str:
    """The section of a heading."""
    found = re.search(rf'<section aria-labelledby="{key}">.*?</section>', page, re.DOTALL)
    assert found is not None, f"no section {key}"
    return found[0]


def rows(part: str) -> list[list[str]]:
    """The rows of all bodies of tables in ``part``: cells as text, without what is small in them."""
    bodies = "".join(re.findall(r"<tbody>.*?</tbody>", part, re.DOTALL))
    return [_cells(row) for row in re.findall(r"<tr.*?</tr>", bodies, re.DOTALL)]


def foot(part: str) -> list[str]:
    """The cells of the line of the sum."""
    [found] = re.findall(r"<tfoot>.*?</tfoot>", part, re.DOTALL)
    return _cells(found)


def _cells(row: str) -> list[str]:
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
    return [text(re.sub(r"<small.*?</small>", "", cell, flags=re.DOTALL)) for cell in cells]


def text(part: str) -> str:
    """What a reader sees of it."""
    return " ".join(unescape(_TAG.sub("", part)).split())


def links(page: str) -> list[str]:
    """Where its links lead."""
    return [unescape(href) for href in re.findall(r'<a [^>]*?href="([^"]*)"', page)]


def anchors(page: str) -> list[str]:
    """All ids; each is there once."""
    found = re.findall(r'\sid="([^"]*)"', page)
    assert len(found) == len(set(found)), "an id twice"
    return found


def plain(got: Response) -> str:
    """The text of a page that is there, and as strict as pages are."""
    assert got.status_code == 200, got.text[:500]
    assert "unsafe-inline" not in got.headers["content-security-policy"]
    assert not re.search(r"\s(style|on\w+)=\"", got.text)
    anchors(got.text)
    return got.text
