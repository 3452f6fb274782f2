"""Plain text, for mail readers, terminals and every chat without a renderer of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from gpucost.notify import pictures, text
from gpucost.notify.message import Fact, Link, Message, Section
from gpucost.notify.render.fitting import fitted, links_left_out, where_whole

WIDTH = 78
MOST_UNITS = 20_000
_LIMIT = f"a message has {MOST_UNITS:,} characters"
_MOST_OF_CODE = 8000
_FACTS = 20


def render(message: Message, *, mention: str = "") -> str:
    """The message in lines of at most 78 characters, but for code, addresses and words that are longer."""
    parts = fitted(
        list(_head(message, mention)),
        list(_body(message)),
        list(_tail(message)),
        lambda parts: text.length("\n\n".join(parts)) < MOST_UNITS,
        _wrapped,
        _LIMIT,
    )
    return "\n\n".join(parts) + "\n"


def _head(message: Message, mention: str) -> Iterator[str]:
    title = _wrapped(text.PLAIN.line(message.title, text.TITLE) or text.EMPTY)
    yield f"{title}\n{'=' * max(map(len, title.splitlines()))}"
    called = mention.strip() if message.mentions else ""
    told = f"{called} {text.PLAIN.line(message.summary, text.SUMMARY)}".strip()
    if told:
        yield _wrapped(told)


def _body(message: Message) -> Iterator[str]:
    yield from _facts(message.facts)
    whole = where_whole(message)
    for section in message.sections:
        yield from _of_section(section, whole)


def _of_section(section: Section, whole: str) -> Iterator[str]:
    title = text.PLAIN.line(section.title, text.TITLE)
    parts = list(_parts(section, whole))
    if title:
        head = _wrapped(title)
        underlined = f"{head}\n{'-' * max(map(len, head.splitlines()))}"
        yield f"{underlined}\n{parts.pop(0)}" if parts else underlined
    yield from parts


def _parts(section: Section, whole: str) -> Iterator[str]:
    if section.text:
        lines = text.PLAIN.lines(section.text, text.TEXT).split("\n")
        yield "\n".join(_wrapped(line) for line in lines)
    yield from _facts(section.facts)
    for item in section.items:
        yield _wrapped(text.PLAIN.line(item, text.ITEM) or text.EMPTY, "  * ", "    ")
    if section.code:
        code = text.VERBATIM.code(section.code, _MOST_OF_CODE, whole)
        yield "\n".join(f"    {line}".rstrip() for line in code.split("\n"))
    if section.chart is not None:
        chart = section.chart
        name = f"{text.PLAIN.line(chart.title, text.TITLE)}\n" if chart.title else ""
        yield f"{name}{text.PLAIN.code(pictures.text_bars(chart, width=WIDTH - 2), _MOST_OF_CODE)}"
    if section.links:
        yield _links(section.links)


def _tail(message: Message) -> Iterator[str]:
    if message.links:
        yield _links(message.links)
    footer = text.PLAIN.line(message.footer, text.FOOTER)
    if footer:
        yield f"--\n{_wrapped(footer)}"


def _facts(facts: Sequence[Fact]) -> Iterator[str]:
    """Names in one column, values in the next; in tables of a few rows, so that what has no room is no more
    than it must be."""
    rows = [
        (
            text.PLAIN.line(fact.name, text.NAME) or text.EMPTY,
            text.PLAIN.line(fact.value, text.VALUE) or text.EMPTY,
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


def _links(links: Sequence[Link]) -> str:
    found, left = text.linked(links)
    lines = [f"{text.PLAIN.line(words, text.LINK)}:\n  {url}" for words, url in found]
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
