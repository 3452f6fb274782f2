"""Messages whose every text tries to ping, to link, to format or to hide, for the tests of renderers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from hypothesis import strategies as st

from gpucost.notify import text
from gpucost.notify.message import (
    ChartBar,
    MessageChart,
    MessageFact,
    MessageLink,
    MessageSection,
    MessageTone,
    NotificationMessage,
)

NASTY = (
    "<!channel>",
    "<!here|here> <!everyone>",
    "<@U1> <#C1> <!subteam^S1>",
    "@here @channel @all @everyone",
    "@oncall: look",
    "<at>oncall</at>",
    "[click](https://evil.example/x)",
    "![x](https://evil.example/x.png)",
    "<https://evil.example|ours>",
    "https://evil.example/a?b=c www.evil.example mailto:x@evil.example",
    "[a]: https://evil.example\n[a]",
    "`code` ``` *bold* _it_ **b** __b__ ~gone~ ~~gone~~",
    "```\n@channel\n```",
    "~town-square #general :smile: :+1:",
    "# head\n- list\n1. one\n> quote\n| a | b |\n|---|---|\n===\n---",
    "<script>alert(1)</script><img src=x onerror=alert(1)><a href='https://evil.example'>x</a>",
    '"><b onmouseover=alert(1)>&lt;b&gt; &amp; &#64;here &#x3c;!channel&#x3e;',
    "abc\u202egpj.exe\u2066 \u200f\u061c",
    "a\u200bb\u200dc\ufeffd\u2060e\u00ade",
    "nul\x00 bell\x07 esc\x1b[31m del\x7f csi\x9b31m",
    "lone \ud800 surrogate \udfff",
    "line\r\nBcc: all@example.com\r\n\r\nbody\u2028next\x85next",
    "{{ 7*7 }} {% raw %} ${x} %(x)s",
    "\\*not bold\\* \\[x\\](https://evil.example)",
    "GPU 🚀 中文 é",
    "z" + "\u0301" * 50,
    "",
    " ",
)
LONG = ("x" * 20_000, "<!channel>" * 2_000, "@here " * 3_400, "a\n" * 10_000, "🚀" * 20_000, "`" * 20_000)
URLS = (
    "https://gpucost.example.com/findings/1?a=b&c=d",
    "http://grafana.example.com/d/x(1)_*|>'\"",
    "https://example.com/" + "x" * 3_000,
    "javascript:alert(1)",
    "data:text/html,x",
    "https://good.example@evil.example/",
    "https://exa mple.com/",
    "https://example.com/\u202ex",
    "https://[broken/",
    "//evil.example",
    "file:///etc/passwd",
    "",
)
OURS = "\u200b\n\t"
"""What may stand in a payload unseen: the space that takes names apart, and line breaks."""

texts = st.one_of(st.sampled_from(NASTY), st.sampled_from(NASTY + LONG), st.text(max_size=60))
links = st.lists(st.builds(MessageLink, texts, st.sampled_from(URLS)), max_size=8).map(tuple)
facts = st.lists(st.builds(MessageFact, texts, texts), max_size=12).map(tuple)
_parts = st.one_of(st.none(), st.integers(0, 10**15))
charts = st.builds(
    MessageChart,
    title=texts,
    unit=texts,
    series=st.tuples(texts, texts),
    colours=st.just(("idle", "unknown")),
    bars=st.lists(st.builds(ChartBar, texts, st.tuples(_parts, _parts), texts), max_size=3).map(tuple),
    upright=st.booleans(),
)
sections = st.builds(
    MessageSection,
    title=texts,
    text=texts,
    facts=facts,
    items=st.lists(texts, max_size=8).map(tuple),
    code=texts,
    links=links,
)
messages = st.builds(
    NotificationMessage,
    title=texts,
    summary=texts,
    tone=st.sampled_from(MessageTone),
    facts=facts,
    sections=st.one_of(
        st.lists(sections, max_size=6).map(tuple), charts.map(lambda chart: (MessageSection(chart=chart),))
    ),
    links=links,
    footer=texts,
    mentions=st.booleans(),
)


def everywhere(words: str) -> NotificationMessage:
    """A message that says ``words`` in every text it has."""
    fact, link = MessageFact(words, words), MessageLink(words, URLS[0])
    section = MessageSection(words, words, (fact,), (words,), words, links=(link,))
    return NotificationMessage(
        words, words, MessageTone.INFO, (fact,), (section,), (link,), words, mentions=True
    )


WORST = tuple(everywhere(words) for words in NASTY)
"""Always the same, whatever Hypothesis tries: each nasty text in every place."""


def addresses(message: NotificationMessage) -> set[str]:
    """Every address that a rendered message may link to."""
    every = [*message.links, *(link for section in message.sections for link in section.links)]
    return {found for link in every if (found := text.address(link)) is not None}


def strings(payload: object) -> Iterator[str]:
    """Every text in a payload."""
    if isinstance(payload, str):
        yield payload
    elif isinstance(payload, dict):
        for value in payload.values():
            yield from strings(value)
    elif isinstance(payload, (list, tuple)):
        for value in payload:
            yield from strings(value)


def unseen(words: str) -> set[str]:
    """Characters that move, hide or break what stands beside them."""
    found = {char for char in words if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    return found - set(OURS)


def crowded() -> NotificationMessage:
    """More of everything than any service takes."""
    section = MessageSection(
        title="Section",
        text="words " * 400,
        facts=tuple(MessageFact(f"name {at}", "value " * 40) for at in range(12)),
        items=tuple(f"item {at} " * 20 for at in range(20)),
        code="line of a patch\n" * 2_000,
    )
    link = MessageLink("Everything", "https://gpucost.example.com/all")
    return NotificationMessage(
        "Crowded", "Very much of it.", sections=(section,) * 40, links=(link,) * 9, footer="gpucost"
    )
