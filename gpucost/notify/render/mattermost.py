"""Mattermost: a text with attachments, as its incoming webhooks take them; ``props.attachments`` of its API
is the same list. A post has 16,383 characters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gpucost.notify import pictures, text
from gpucost.notify.message import MessageFact, MessageLink, MessageSection, MessageTone, NotificationMessage
from gpucost.notify.text import (
    fitted,
    links_left_out,
    packed,
    where_whole,
)

MOST_UNITS = 16_000
_LIMIT = f"Mattermost takes about {MOST_UNITS:,} characters"
_COLOURS = {
    MessageTone.CRITICAL: "unavailable",
    MessageTone.WARNING: "unallocated",
    MessageTone.GOOD: "s1",
    MessageTone.INFO: "held",
}
_MOST_OF_CODE = 8000
_MOST_OF_A_TEXT = 9000
# Width of a line of code on a phone.
_CHART_WIDTH = 34
_FACTS = 10

Attachment = dict[str, Any]


def render(message: NotificationMessage, *, mention: str = "") -> dict[str, Any]:
    """The payload: ``text`` has the title and the summary, ``attachments`` all else."""
    title = text.MATTERMOST.line(message.title, text.TITLE) or text.EMPTY
    called = mention.strip() if message.mentions else ""
    summary = text.MATTERMOST.line(message.summary, text.SUMMARY)
    told = f"{called} {summary}".strip()
    heading = f"#### {title}\n{told}".rstrip()
    colour = pictures.palette()[_COLOURS[message.tone]]
    attachments = fitted(
        [],
        list(_body(message, colour)),
        list(_tail(message)),
        lambda parts: text.length(json.dumps([heading, *parts], ensure_ascii=False)) <= MOST_UNITS,
        lambda sentence: _attachment(text=sentence),
        _LIMIT,
    )
    return {"text": heading, "attachments": attachments}


def _body(message: NotificationMessage, colour: str) -> Iterator[Attachment]:
    for fields in _fields(message.facts):
        yield {**_attachment(fields=fields), "color": colour}
    whole = where_whole(message)
    for section in message.sections:
        title = text.MATTERMOST.line(section.title, text.TITLE)
        for at, part in enumerate(_of_section(section, whole)):
            named = {"title": title} if title and at == 0 else {}
            yield {**part, **named, "color": colour}


def _of_section(section: MessageSection, whole: str) -> Iterator[Attachment]:
    """The section's words and code, facts, and chart in attachments of their own."""
    lines = [text.MATTERMOST.lines(section.text, text.TEXT)] if section.text else []
    lines += [f"- {text.MATTERMOST.line(item, text.ITEM) or text.EMPTY}" for item in section.items]
    lines += [_code(section.code, whole)] if section.code else []
    parts = [_attachment(text=words) for words in packed(lines, _MOST_OF_A_TEXT)]
    parts += [_attachment(fields=fields) for fields in _fields(section.facts)]
    if section.chart is not None:
        bars = _code(pictures.text_bars(section.chart, width=_CHART_WIDTH), whole)
        name = text.MATTERMOST.line(section.chart.title, text.TITLE)
        parts.append(_attachment(text=f"**{name}**\n{bars}" if name else bars))
    links = _links(section.links)
    if links:
        parts.append(_attachment(text=links))
    yield from parts or [_attachment()]


def _tail(message: NotificationMessage) -> Iterator[Attachment]:
    links, footer = _links(message.links), text.PLAIN.line(message.footer, text.FOOTER)
    if links or footer:
        yield {**_attachment(text=links), "footer": footer}


def _links(links: Sequence[MessageLink]) -> str:
    found, left = text.linked(links)
    written = [f"[{text.MATTERMOST.line(words, text.LINK)}]({url})" for words, url in found]
    return " · ".join([*written, *filter(None, [links_left_out(left)])])


def _fields(facts: Sequence[MessageFact]) -> Iterator[list[dict[str, Any]]]:
    """The facts in short lists, so that as few as possible are left out at the limit."""
    written = [
        {
            "title": text.MATTERMOST.line(fact.name, text.NAME) or text.EMPTY,
            "value": text.MATTERMOST.line(fact.value, text.VALUE) or text.EMPTY,
            "short": True,
        }
        for fact in facts
    ]
    for at in range(0, len(written), _FACTS):
        yield written[at : at + _FACTS]


def _code(code: str, whole: str) -> str:
    written = text.MATTERMOST_CODE.code(code, _MOST_OF_CODE, whole)
    fence = text.fence(written)
    return f"{fence}\n{written}\n{fence}"


def _attachment(**parts: Any) -> Attachment:
    """``fallback`` is for clients without attachments; the post's text has the same content."""
    return {"fallback": "", **parts}
