"""Slack: blocks, with a fallback text. Limits: https://docs.slack.dev/reference/block-kit/blocks, and about
13,200 characters over all blocks, which is not documented."""

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

MOST_BLOCKS = 50
MOST_FIELDS = 10
MOST_UNITS = 13_000
MOST_OF_A_TEXT = 3000
_LIMIT = f"Slack takes {MOST_BLOCKS} blocks and about {MOST_UNITS:,} characters"
_MARKS = {
    MessageTone.CRITICAL: "🔴",
    MessageTone.WARNING: "🟠",
    MessageTone.GOOD: "🟢",
    MessageTone.INFO: "🔵",
}
# Width of a line of code on a phone.
_CHART_WIDTH = 34

Block = dict[str, Any]


def render(message: NotificationMessage, *, mention: str = "") -> dict[str, Any]:
    """The payload of an incoming webhook, ``chat.postMessage`` or ``chat.update``, without the channel."""
    plain = text.SLACK_PLAIN
    title = plain.line(message.title, text.TITLE) or text.EMPTY
    summary = plain.line(message.summary, text.SUMMARY)
    fallback = f"{title}: {summary}" if summary else title
    blocks = fitted(
        list(_head(message, title, mention)),
        list(_body(message)),
        list(_tail(message)),
        lambda parts: _fits(parts, fallback),
        lambda sentence: _context(sentence),
        _LIMIT,
    )
    return {
        "text": fallback,
        "blocks": blocks,
        "mrkdwn": False,
        "parse": "none",  # chat.update links names otherwise
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _head(message: NotificationMessage, title: str, mention: str) -> Iterator[Block]:
    header = {"type": "plain_text", "text": f"{_MARKS[message.tone]} {title}", "emoji": False}
    yield {"type": "header", "text": header}
    called = mention.strip() if message.mentions else ""
    summary = text.SLACK.line(message.summary, text.SUMMARY)
    if called or summary:
        yield _section(f"{called} {summary}".strip())


def _body(message: NotificationMessage) -> Iterator[Block]:
    yield from _fields(message.facts)
    whole = where_whole(message)
    for section in message.sections:
        yield {"type": "divider"}
        yield from _of_section(section, whole)


def _of_section(section: MessageSection, whole: str) -> Iterator[Block]:
    lines = []
    if section.title:
        lines.append(_bold(text.SLACK.line(section.title, text.TITLE)))
    if section.text:
        lines.append(text.SLACK.lines(section.text, text.TEXT))
    for words in packed(lines, MOST_OF_A_TEXT):
        yield _section(words)
    yield from _fields(section.facts)
    items = (f"• {text.SLACK.line(item, text.ITEM) or text.EMPTY}" for item in section.items)
    for words in packed(items, MOST_OF_A_TEXT):
        yield _section(words)
    if section.code:
        yield _code(section.code, whole)
    if section.chart is not None:
        chart = section.chart
        if chart.title:
            yield _section(_bold(text.SLACK.line(chart.title, text.TITLE)))
        yield _code(pictures.text_bars(chart, width=_CHART_WIDTH), whole)
    yield from _links(section.links)


def _tail(message: NotificationMessage) -> Iterator[Block]:
    yield from _links(message.links)
    footer = text.SLACK_PLAIN.line(message.footer, text.FOOTER)
    if footer:
        yield _context(footer)


def _links(links: Sequence[MessageLink]) -> Iterator[Block]:
    found, left = text.linked(links)
    written = [f"<{url.replace('&', '&amp;')}|{text.SLACK.line(words, text.LINK)}>" for words, url in found]
    for words in packed([*written, *filter(None, [links_left_out(left)])], MOST_OF_A_TEXT, " · "):
        yield _section(words)


def _fields(facts: Sequence[MessageFact]) -> Iterator[Block]:
    for at in range(0, len(facts), MOST_FIELDS):
        yield {"type": "section", "fields": [_mrkdwn(_field(fact)) for fact in facts[at : at + MOST_FIELDS]]}


def _field(fact: MessageFact) -> str:
    name = text.SLACK.line(fact.name, text.NAME)
    return f"{_bold(name)}\n{text.SLACK.line(fact.value, text.VALUE) or text.EMPTY}"


def _code(code: str, whole: str) -> Block:
    return _section(f"```\n{text.SLACK_CODE.code(code, MOST_OF_A_TEXT - 8, whole)}\n```")


def _bold(written: str) -> str:
    return f"*{written or text.EMPTY}*"


def _section(written: str) -> Block:
    return {"type": "section", "text": _mrkdwn(written)}


def _context(written: str) -> Block:
    return {"type": "context", "elements": [{"type": "plain_text", "text": written, "emoji": False}]}


def _mrkdwn(written: str) -> Block:
    """``verbatim``: Slack makes no links of names, channels or addresses by itself."""
    return {"type": "mrkdwn", "text": written, "verbatim": True}


def _fits(blocks: Sequence[Block], fallback: str) -> bool:
    units = text.length(json.dumps(blocks, ensure_ascii=False)) + text.length(fallback)
    return len(blocks) <= MOST_BLOCKS and units <= MOST_UNITS
