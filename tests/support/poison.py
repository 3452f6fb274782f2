"""Texts that try to be more than a name wherever one is shown, and what each kind of face makes of them."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.hostile_messages import unseen

BEACON = "evil.example"
"""In every address; a page that asks for it asks for what no test has."""
TITLE = "owned"
"""What a page is called once a script of these ran in it."""
_SCRIPT = f"document.title='{TITLE}'"
FORMULAS = "=+-@\t\r\n＝＋－＠"
POISONS = (
    '=cmd|" /C calc"!A0',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\t=1+1",
    "\r\n=1+1",
    "＝1+1",
    "x;=1+1;@y",
    'x";=1+1;"',
    'x\n"=1+1\t=2',
    'x","=1+1',
    "\ufeff=1+1",
    f"<script>{_SCRIPT}</script>",
    f'"><img src=//{BEACON}/x onerror={_SCRIPT}>',
    f"' onmouseover={_SCRIPT} style='background:url(//{BEACON}/y)",
    f"</style></title></textarea></svg></script><script>{_SCRIPT}</script>",
    f"<svg onload={_SCRIPT}><a xlink:href=javascript:{_SCRIPT}>x</a></svg>",
    f"javascript:{_SCRIPT}//",
    f"[x](https://{BEACON}) ![x](https://{BEACON}/z.png) <https://{BEACON}|ours>",
    "<!channel> <@U1> @all @here <at>all</at> @everyone",
    "# head | a | `code` *bold* _it_ ~gone~ {{ 7*7 }} ${x} {% raw %} $labels",
    'x"} 1\ninjected_total{team="y',
    "x\\",
    "esc\x1b[2J\x1b]0;title\x07\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "back\x08\x08\x08\x7f csi\x9b31m",
    "line\r2026-10-06T00:00:00.000Z INFO gpucost.x forged",
    "line\nBcc: all@example.com\u2028next\x85next",
    "abc\u202egpj.exe\u2066 \u200f\u061c",
    "a\u200bb\u2060e\u00ade",
    "' OR '1'='1'; DROP TABLE unit; --",
    'x"} or vector(1) #',
    "$(touch owned) `touch owned` ; rm -rf ~ | x && y",
    "../../etc/passwd%00%2f",
    "--all",
    "z" * 400,
)
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,]*\Z")
_ELEMENTS = frozenset(
    (
        *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "article"),
        *("nav", "div", "span", "p", "small", "strong", "em", "b", "i", "bdi", "h1", "h2", "h3", "h4", "ul"),
        *("ol", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tfoot", "tr", "th", "td", "caption"),
        *("colgroup", "col", "code", "pre", "a", "img", "details", "summary", "time", "abbr", "figure"),
        *("figcaption", "br", "hr", "svg", "g", "rect", "line", "path", "text", "tspan", "desc", "defs"),
        *("pattern", "polyline", "use"),
    )
)
_ADDRESSES = ("href", "src", "xlink:href", "action", "formaction", "srcdoc", "data", "poster")


def plain_text(text: str) -> None:
    """A terminal shows it as it stands, and no line of it begins but where the printer began one."""
    assert not unseen(text.replace("\n", "")) - {"\t"}, unseen(text)


def a_table(text: str) -> list[list[str]]:
    """CSV as RFC 4180 has it, harmless in a spreadsheet, also in one that takes ``;`` or tabs for commas."""
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert len({len(row) for row in rows}) == 1
    for delimiter in ",;\t":
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            for cell in row:
                assert cell[:1] not in FORMULAS or not cell or _NUMBER.match(cell), (delimiter, cell)
    return rows


def a_document(text: str) -> Any:
    """JSON in one piece."""
    return json.loads(text)


class Page(HTMLParser):
    """A page of which nothing runs, and nothing is fetched."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words = ""
        self.feed(text)
        self.close()
        assert not unseen(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _ELEMENTS, tag
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name != "style" or "url(" not in (value or ""), (tag, value)
            if name in _ADDRESSES:
                assert (value or "").startswith(("#", "data:image/png;base64,", "https://")), (tag, value)
                assert BEACON not in (value or "")

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_decl(self, decl: str) -> None:
        assert decl.lower() == "doctype html"

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def samples(text: str) -> dict[str, list[dict[str, str]]]:
    """Labels by family, as Prometheus reads them. None of them is made of a label of another."""
    found = {
        family.name: [sample.labels for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }
    assert all(name.startswith("gpucost_") for name in found)
    return found
