"""Plain text, for mail readers, terminals and every chat without a renderer of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from gpucost.notify import pictures, text
from gpucost.notify.message import MessageFact, MessageLink, MessageSection, NotificationMessage
from gpucost.notify.text import fitted, links_left_out, where_whole

WIDTH = 78
MOST_UNITS = 20_000
_LIMIT = f"a message has {MOST_UNITS:,} characters"
_MOST_OF_CODE = 8000
_FACTS = 20


class PlainMarkup(NamedTuple):
    """How words are written, and code."""

    words: text.TextMarkup
    code: text.TextMarkup


def render(message: NotificationMessage, *, mention: str = "", chat: bool = False) -> str:
    """The message in lines of at most 78 characters, but for code, addresses and words that are longer. For a
    ``chat`` its texts are escaped so that they mention no one; mail readers and terminals have no mentions.
    """
    to = PlainMarkup(text.CHAT, text.CHAT_CODE) if chat else PlainMarkup(text.PLAIN, text.VERBATIM)
    parts = fitted(
        list(_head(message, mention, to)),
        list(_body(message, to)),
        list(_tail(message, to)),
        lambda parts: text.length("\n\n".join(parts)) < MOST_UNITS,
        _wrapped,
        _LIMIT,
    )
    return "\n\n".join(parts) + "\n"


def _head(message: NotificationMessage, mention: str, to: PlainMarkup) -> Iterator[str]:
    title = _wrapped(to.words.line(message.title, text.TITLE) or text.EMPTY)
    yield f"{title}\n{'=' * max(map(len, title.splitlines()))}"
    called = mention.strip() if message.mentions else ""
    told = f"{called} {to.words.line(message.summary, text.SUMMARY)}".strip()
    if told:
        yield _wrapped(told)


def _body(message: NotificationMessage, to: PlainMarkup) -> Iterator[str]:
    yield from _facts(message.facts, to)
    whole = where_whole(message)
    for section in message.sections:
        yield from _of_section(section, whole, to)


def _of_section(section: MessageSection, whole: str, to: PlainMarkup) -> Iterator[str]:
    title = to.words.line(section.title, text.TITLE)
    parts = list(_parts(section, whole, to))
    if title:
        head = _wrapped(title)
        underlined = f"{head}\n{'-' * max(map(len, head.splitlines()))}"
        yield f"{underlined}\n{parts.pop(0)}" if parts else underlined
    yield from parts


def _parts(section: MessageSection, whole: str, to: PlainMarkup) -> Iterator[str]:
    if section.text:
        lines = to.words.lines(section.text, text.TEXT).split("\n")
        yield "\n".join(_wrapped(line) for line in lines)
    yield from _facts(section.facts, to)
    for item in section.items:
        yield _wrapped(to.words.line(item, text.ITEM) or text.EMPTY, "  * ", "    ")
    if section.code:
        code = to.code.code(section.code, _MOST_OF_CODE, whole)
        yield "\n".join(f"    {line}".rstrip() for line in code.split("\n"))
    if section.chart is not None:
        chart = section.chart
        name = f"{to.words.line(chart.title, text.TITLE)}\n" if chart.title else ""
        yield f"{name}{to.words.code(pictures.text_bars(chart, width=WIDTH - 2), _MOST_OF_CODE)}"
    if section.links:
        yield _links(section.links, to)


def _tail(message: NotificationMessage, to: PlainMarkup) -> Iterator[str]:
    if message.links:
        yield _links(message.links, to)
    footer = to.words.line(message.footer, text.FOOTER)
    if footer:
        yield f"--\n{_wrapped(footer)}"


def _facts(facts: Sequence[MessageFact], to: PlainMarkup) -> Iterator[str]:
    """Names in one column, values in the next; in short tables, so that as few as possible are left out at
    the limit."""
    rows = [
        (
            to.words.line(fact.name, text.NAME) or text.EMPTY,
            to.words.line(fact.value, text.VALUE) or text.EMPTY,
        )
        for fact in facts
    ]
    column = min(max((len(name) for name, _ in rows), default=0), WIDTH // 3) + 2
    for at in range(0, len(rows), _FACTS):
        yield "\n".join(_fact(name, value, column) for name, value in rows[at : at + _FACTS])


def _fact(name: str, value: str, column: int) -> str:
    if len(name) + 2 <= column:
        return _wrapped(value, f"{name:<{column}}", " " * column)
    return f"{_wrapped(name)}\n{_wrapped(value, ' ' * column, ' ' * column)}"


def _links(links: Sequence[MessageLink], to: PlainMarkup) -> str:
    found, left = text.linked(links)
    lines = [f"{to.words.line(words, text.LINK)}:\n  {url}" for words, url in found]
    return "\n".join([*lines, *filter(None, [links_left_out(left)])])


def _wrapped(words: str, first: str = "", rest: str = "") -> str:
    lines = wrap(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)
