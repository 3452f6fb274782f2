"""Microsoft Teams: one adaptive card in the envelope that a Workflow takes. A card has 28 kB, pictures
included; text blocks and facts take bold, lists and links of markdown, so all else is escaped."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from email.utils import parseaddr
from typing import Any

from gpucost.notify import pictures, text
from gpucost.notify.message import MessageChart, MessageFact, MessageSection, MessageTone, NotificationMessage
from gpucost.notify.text import fitted, links_left_out, where_whole

MOST_BYTES = 28_000
_LIMIT = f"Teams takes {MOST_BYTES // 1000} kB"
_MOST_OF_CODE = 6000
# Width of a line of code on a phone.
_CHART_WIDTH = 34
_FACTS = 10
_STYLES = {
    MessageTone.CRITICAL: "attention",
    MessageTone.WARNING: "warning",
    MessageTone.GOOD: "good",
    MessageTone.INFO: "accent",
}

Element = dict[str, Any]


def render(message: NotificationMessage, *, mention: str = "") -> dict[str, Any]:
    """The payload. ``mention`` is a user's address, or ``Name <address>``. Charts are as sharp as there is
    room for: pictures of two sizes, else bars of text."""
    called = parseaddr(mention) if message.mentions else ("", "")
    head = [_head(message, called)]
    tail = list(_tail(message))
    every = text.linked(message.links)[0]
    drawn = any(section.chart is not None for section in message.sections)
    for scale in (2, 1, 0) if drawn else (0,):
        body = list(_body(message, scale))
        card = _card(fitted(head, body, tail, _always, _note, _LIMIT), every, called)
        if _size(card) <= MOST_BYTES:
            return card
    return _card(
        fitted(
            head, body, tail, lambda parts: _size(_card(parts, every, called)) <= MOST_BYTES, _note, _LIMIT
        ),
        every,
        called,
    )


def _always(_: Sequence[Element]) -> bool:
    return True


def _size(card: Element) -> int:
    """Bytes of the envelope in its longest JSON form: in ASCII, with blanks."""
    return len(json.dumps(card))


def _card(body: Sequence[Element], links: Sequence[tuple[str, str]], called: tuple[str, str]) -> Element:
    content: Element = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.5",
        "msteams": {"width": "Full"},
        "body": list(body),
    }
    if links:
        content["actions"] = [
            {"type": "Action.OpenUrl", "title": text.PLAIN.line(words, text.LINK), "url": url}
            for words, url in links
        ]
    if called[1]:
        who = {"id": called[1], "name": _called_name(called)}
        content["msteams"]["entities"] = [{"type": "mention", "text": _at(called), "mentioned": who}]
    card = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": content}
    return {"type": "message", "attachments": [card]}


def _called_name(called: tuple[str, str]) -> str:
    return called[0] or called[1]


def _at(called: tuple[str, str]) -> str:
    return f"<at>{_called_name(called)}</at>"


def _head(message: NotificationMessage, called: tuple[str, str]) -> Element:
    title = text.TEAMS.line(message.title, text.TITLE) or text.EMPTY
    items = [_text(title, size="Large", weight="Bolder")]
    summary = text.TEAMS.line(message.summary, text.SUMMARY)
    words = f"{_at(called)} {summary}".strip() if called[1] else summary
    if words:
        items.append(_text(words, spacing="Small"))
    return {"type": "Container", "style": _STYLES[message.tone], "bleed": True, "items": items}


def _body(message: NotificationMessage, scale: int) -> Iterator[Element]:
    yield from _facts(message.facts)
    whole = where_whole(message)
    for section in message.sections:
        for at, element in enumerate(_of_section(section, whole, scale)):
            yield {**element, "separator": True, "spacing": "Medium"} if at == 0 else element


def _of_section(section: MessageSection, whole: str, scale: int) -> Iterator[Element]:
    if title := text.TEAMS.line(section.title, text.TITLE):
        yield _text(title, weight="Bolder")
    if words := text.TEAMS.lines(section.text, text.TEXT):
        # A single line break is a blank to Teams.
        yield _text(words.replace("\n\n", "\n").replace("\n", "\n\n"))
    yield from _facts(section.facts)
    for item in section.items:
        yield _text(f"- {text.TEAMS.line(item, text.ITEM) or text.EMPTY}", spacing="Small")
    if section.code:
        yield _code(text.VERBATIM.code(section.code, _MOST_OF_CODE, whole))
    if section.chart is not None:
        yield _picture(section.chart, scale)
    found, left = text.linked(section.links)
    written = [f"[{text.TEAMS.line(words, text.LINK)}]({url})" for words, url in found]
    if written or left:
        yield _text(" · ".join([*written, *filter(None, [links_left_out(left)])]), spacing="Small")


def _tail(message: NotificationMessage) -> Iterator[Element]:
    words = " ".join(
        filter(
            None,
            [text.TEAMS.line(message.footer, text.FOOTER), links_left_out(text.linked(message.links)[1])],
        )
    )
    if words:
        yield _note(words)


def _note(words: str) -> Element:
    return {**_text(words, size="Small", spacing="Medium"), "isSubtle": True}


def _facts(facts: Sequence[MessageFact]) -> Iterator[Element]:
    """The facts in short sets, so that as few as possible are left out at the limit."""
    written = [
        {
            "title": text.TEAMS.line(fact.name, text.NAME) or text.EMPTY,
            "value": text.TEAMS.line(fact.value, text.VALUE) or text.EMPTY,
        }
        for fact in facts
    ]
    for at in range(0, len(written), _FACTS):
        yield {"type": "FactSet", "facts": written[at : at + _FACTS]}


def _picture(chart: MessageChart, scale: int) -> Element:
    """The chart as a PNG of ``scale``, as bars of text for 0."""
    try:
        encoded = b64encode(pictures.png(chart, scale=scale)).decode("ascii") if scale else ""
    except ImportError:
        encoded = ""
    if encoded:
        words = text.PLAIN.line(pictures.described(chart), text.TEXT)
        return {
            "type": "Image",
            "url": f"data:image/png;base64,{encoded}",
            "altText": words,
            "size": "Stretch",
        }
    title = [text.shown(chart.title[: text.TITLE])] if chart.title else []
    return _code("\n".join([*title, pictures.text_bars(chart, width=_CHART_WIDTH)]))


def _code(code: str) -> Element:
    """Teams' own element for code, which can be copied; for clients that do not support it, runs of text,
    which no client formats."""
    runs = [{"type": "TextRun", "text": f"{line}\n", "fontType": "Monospace"} for line in code.split("\n")]
    return {
        "type": "CodeBlock",
        "codeSnippet": code,
        "language": "PlainText",
        "fallback": {"type": "RichTextBlock", "inlines": runs},
    }


def _text(written: str, **more: str) -> Element:
    return {"type": "TextBlock", "text": written, "wrap": True, **more}
