"""Text is escaped and cut in one place: what comes out pings no user, links nowhere and hides nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gpucost.notify import text
from gpucost.notify.message import MessageLink
from tests.support.hostile_messages import LONG, NASTY, texts, unseen

WRITINGS = {
    "plain": text.PLAIN,
    "slack plain": text.SLACK_PLAIN,
    "slack": text.SLACK,
    "slack code": text.SLACK_CODE,
    "teams": text.TEAMS,
    "verbatim": text.VERBATIM,
    "chat": text.CHAT,
    "chat code": text.CHAT_CODE,
    "mattermost": text.MATTERMOST,
    "mattermost code": text.MATTERMOST_CODE,
}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("<!channel> & <@U1>", "&lt;!channel&gt; &amp; &lt;@\u200bU1&gt;"),
        ("@here alice@example.com", "@\u200bhere alice@example.com"),
        ("*bold* ~gone~ `code`", "∗bold∗ ∼gone∼ ˋcodeˋ"),
        ("_it_ gpu_team_a __unallocated__", "＿it＿ gpu_team_a ＿＿unallocated＿＿"),
        (":smile: at 12:30:00", "∶smile: at 12:30:00"),
        ("https://evil.example www.evil.example", "https[:]//evil.example www[.]evil.example"),
    ],
)
def test_slack_words(given: str, written: str) -> None:
    assert text.SLACK.line(given, 200) == written


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("[a](https://evil.example)", r"\[a\](https\[:\]//evil.example)"),
        ("<at>x</at>", "&lt;at&gt;x&lt;/at&gt;"),
        ("- a", r"\- a"),
        ("12. a", r"12\. a"),
        ("> a", "&gt; a"),
        ("gpu_team_a *b* _c_", r"gpu_team_a \*b\* \_c\_"),
        ("R&D &lt;", "R&D &amp;lt;"),
        ("USD -5.00 (8 × H100)", "USD -5.00 (8 × H100)"),
        ("{{DATE(2026-01-01T00:00:00Z,SHORT)}}", "{\u200b{DATE(2026-01-01T00:00:00Z,SHORT)}}"),
        ("{{{TIME(x)}}} ${secret} US$ 5 {a}", "{\u200b{\u200b{TIME(x)}}} $\u200b{secret} US$ 5 {a}"),
    ],
)
def test_teams_words(given: str, written: str) -> None:
    assert text.TEAMS.line(given, 200) == written


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("@channel @here x@y.z", "@\u200bchannel @\u200bhere x@\u200by.z"),
        ("~town-square #general", r"\~town-square \#general"),
        (":smile: 12:30:00", ":\u200bsmile: 12:30:00"),
        ("<!channel>", "&lt;!channel&gt;"),
        ("a | b", r"a \| b"),
        ("$x^2$ US$ 5", "&#36;x^2&#36; US&#36; 5"),
    ],
)
def test_mattermost_words(given: str, written: str) -> None:
    assert text.MATTERMOST.line(given, 200) == written


CALLS = {
    "@everyone": "@\u200beveryone",
    "(@here) x@all": "(@\u200bhere) x@\u200ball",
    "\uff20channel": "\uff20\u200bchannel",
    "<@U024BE7LH> <@&123>": "‹@\u200bU024BE7LH> ‹@\u200b&123>",
    "<!channel>": "‹!channel>",
    "<users/all>": "‹users/all>",
    '<at user_id="all">': '‹at user_id="all">',
    "[CQ:at,qq=all]": "[\u200bCQ:at,qq=all]",
    "@**all** @_**x**": "@\u200b**all** @\u200b_**x**",
    "a < b [0] [x]": "a < b [0] [x]",
}


@pytest.mark.fault(63)
@pytest.mark.parametrize(("given", "written"), CALLS.items())
def test_words_for_a_chat_that_is_not_known(given: str, written: str) -> None:
    assert text.CHAT.line(given, 200) == written
    assert text.CHAT_CODE.code(given, 200) == written


def test_code_is_written_as_it_stands_but_for_what_acts_in_code() -> None:
    patch = "spec:\n  a: '*b* _c_ @here'\n\tx: \"https://example.com\"\n"
    assert text.VERBATIM.code(patch, 500) == patch.rstrip("\n")
    assert text.MATTERMOST_CODE.code(patch, 500) == patch.rstrip("\n")
    assert text.SLACK_CODE.code(patch + "<!here>```", 500) == (patch + "&lt;!here&gt;`\u200b`\u200b`")
    assert text.MATTERMOST_CODE.code("<!channel> a < b", 500) == "<\u200b!channel> a < b"
    assert text.VERBATIM.code("a: \u202eb", 500) == "a: \\u202eb"


def test_cut_code_ends_at_a_line_and_says_where_the_whole_is() -> None:
    written = text.VERBATIM.code("line of code\n" * 100, 100, "Open the finding")
    *lines, mark = written.split("\n")
    assert mark == "… (cut; all of it: Open the finding)"
    assert set(lines) == {"line of code"}
    assert text.VERBATIM.code("x" * 200, 100).endswith("x\n… (cut)")


@pytest.mark.parametrize("name", WRITINGS)
@given(words=texts, limit=st.integers(120, 3000))
@pytest.mark.fault(63)
def test_nothing_is_longer_than_its_limit_nor_unseen(name: str, words: str, limit: int) -> None:
    writing = WRITINGS[name]
    for written in (
        writing.line(words, limit),
        writing.lines(words, limit),
        writing.code(words, limit, words),
    ):
        assert text.length(written) <= limit
        assert not unseen(written)
    assert "\n" not in writing.line(words, limit)


@pytest.mark.parametrize("name", WRITINGS)
@pytest.mark.parametrize("words", LONG)
def test_a_cut_is_marked(name: str, words: str) -> None:
    written = WRITINGS[name].line(words, 300)
    assert written.endswith(text.CUT)
    assert text.length(written) > 270
    assert WRITINGS[name].line(words[:10], 300).endswith(words[9].strip()) or words[9] in "<!`>@"


@given(words=texts)
@example(words="".join(NASTY))
@pytest.mark.fault(63)
def test_markdown_reads_it_as_the_words_alone(words: str) -> None:
    """A CommonMark parser, with tables and raw HTML, finds nothing but text in what is written."""
    seen = text.PLAIN.line(words, 100_000)
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for writing in (text.TEAMS, text.MATTERMOST):
        tokens = parser.parse(writing.line(words, 200_000))
        assert {token.type for token in tokens} <= {"paragraph_open", "inline", "paragraph_close"}
        children = [child for token in tokens for child in token.children or []]
        assert {child.type for child in children} <= {"text", "text_special"}
        assert _flat("".join(child.content for child in children)) == _flat(seen)


def _flat(words: str) -> str:
    return words.replace("\u200b", "").replace("\xa0", " ").strip()


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("https://grafana.example.com/d/x?var-a=b&c=d#e", "https://grafana.example.com/d/x?var-a=b&c=d#e"),
        ("https://example.com/a(b)|c>d'\"`*_[e]", "https://example.com/a%28b%29%7Cc%3Ed%27%22%60%2A_%5Be%5D"),
        ("https://example.com/%7Bx%7D/é", "https://example.com/%7Bx%7D/%C3%A9"),
        ("http://localhost:3000/", "http://localhost:3000/"),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("//example.com", None),
        ("https://user:secret@example.com/", None),
        ("https://good.example\\@evil.example/", None),
        ("https://exa<mple.com/", None),
        ("https://example.com/\nx", None),
        ("https://example.com/ x", None),
        ("https://example.com/\ud800", None),
        ("https://[broken/", None),
        ("https://example.com:port/", None),
        ("https://example.com/" + "x" * 1000, None),
        ("", None),
    ],
)
def test_addresses(url: str, written: str | None) -> None:
    assert text.address(MessageLink("x", url)) == written


def test_links_beyond_the_most_are_counted() -> None:
    good, bad = MessageLink("a", "https://example.com/"), MessageLink("b", "ftp://example.com/")
    found, left = text.linked([bad, *[good] * 7])
    assert found == (("a", "https://example.com/"),) * text.MOST_LINKS
    assert left == 3


@given(code=st.text("`a\n", max_size=40))
def test_a_fence_is_longer_than_any_in_the_code(code: str) -> None:
    fence = text.fence(code)
    assert len(fence) >= 3
    assert fence not in code
