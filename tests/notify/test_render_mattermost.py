"""Mattermost's payload: within its limit, and nothing in it that Mattermost or its Slack reader acts upon."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from markdown_it import MarkdownIt

from gpucost.notify import text
from gpucost.notify.message import MessageSection, NotificationMessage
from gpucost.notify.render import mattermost
from tests.support.hostile_messages import WORST, addresses, crowded, messages, strings, unseen
from tests.support.sample_messages import IDLE, PATCH, SAMPLES

MENTION = "@oncall"


def check(payload: dict[str, Any]) -> None:
    """https://developers.mattermost.com/integrate/webhooks/incoming and its message attachments"""
    assert len(json.dumps(payload, ensure_ascii=False)) <= 16_383
    assert set(payload) == {"text", "attachments"}
    assert payload["text"]
    for attachment in payload["attachments"]:
        assert set(attachment) <= {"fallback", "color", "title", "text", "fields", "footer"}
        assert re.fullmatch("#[0-9a-f]{6}", attachment.get("color", "#000000"))
        assert len(attachment.get("fields", [])) <= 10
        for field in attachment.get("fields", []):
            assert set(field) == {"title", "value", "short"}
            assert field["title"]
            assert field["value"]


def markdown(payload: dict[str, Any]) -> list[str]:
    found = [payload["text"]]
    for attachment in payload["attachments"]:
        found += [attachment.get("title", ""), attachment.get("text", "")]
        found += [
            words for field in attachment.get("fields", []) for words in (field["title"], field["value"])
        ]
    return found


def harmless(message: NotificationMessage) -> None:
    payload = mattermost.render(message, mention=MENTION)
    check(payload)
    assert payload == mattermost.render(message, mention=MENTION)
    assert not set().union(*(unseen(words) for words in strings(payload)))
    assert not any(re.search(r"://|www\.", each.get("footer", "")) for each in payload["attachments"])
    allowed = addresses(message)
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for words in markdown(payload):
        assert not re.search(r"<[!@#]|<\w+:", words)  # read as Slack's, even in code
        tokens = [part for token in parser.parse(words) for part in (token, *(token.children or []))]
        assert {str(token.attrs["href"]) for token in tokens if token.type == "link_open"} <= allowed
        assert not {token.type for token in tokens} & {"html_inline", "html_block", "image", "table_open"}
        if all(token.type != "fence" for token in tokens):
            bare = words.replace(f"\n{MENTION}", "\n") if message.mentions else words
            bare = re.sub(r"\]\(http[^)\s]*\)", "]", bare)
            assert not re.search(r"@\w|(?<!\\)`|://|www\.", bare)
    assert (
        sum(bool(re.search(rf"(^|\n){MENTION}\b", words)) for words in markdown(payload)[:1])
        == message.mentions
    )


@pytest.mark.fault(63)
@given(message=messages)
@settings(max_examples=8)
def test_hostile_words_ping_nobody_and_link_nowhere(message: NotificationMessage) -> None:
    harmless(message)


@pytest.mark.fault(63)
@pytest.mark.parametrize("message", WORST, ids=range(len(WORST)))
def test_the_worst_words_in_every_place(message: NotificationMessage) -> None:
    harmless(message)


def worst_are_harmless() -> None:
    for message in WORST:
        harmless(message)


@pytest.mark.parametrize("escaper", ["MATTERMOST", "MATTERMOST_CODE", "PLAIN"])
def test_the_worst_words_tell_when_an_escaper_is_off(escaper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, escaper, text.VERBATIM)
    with pytest.raises(AssertionError):
        worst_are_harmless()


def test_the_worst_words_tell_when_something_is_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_visible", str)
    with pytest.raises(AssertionError):
        worst_are_harmless()


@pytest.mark.fault(63)
@pytest.mark.parametrize("code", ["a: 1\n```\n@channel [x](https://evil.example)\n```", "`" * 9, "```yaml"])
def test_code_cannot_end_its_block(code: str) -> None:
    (attachment, *_) = mattermost.render(NotificationMessage("T", "", sections=(MessageSection(code=code),)))[
        "attachments"
    ]
    tokens = MarkdownIt("commonmark").parse(attachment["text"])
    assert [(token.type, token.content) for token in tokens] == [("fence", f"{code}\n")]


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_within_limits(name: str) -> None:
    check(mattermost.render(SAMPLES[name], mention=MENTION))


def test_a_finding_says_amount_job_team_and_action() -> None:
    payload = mattermost.render(IDLE, mention=MENTION)
    assert payload["text"].startswith(f"#### {IDLE.title}\n{MENTION} Since 06:10 UTC, USD 98.40 so far")
    facts, action, tail = payload["attachments"]
    assert facts["fields"][2] == {
        "title": "Costs",
        "value": "USD 30.25 an hour, USD 98.40 so far",
        "short": True,
    }
    assert action["title"] == "What to do"
    assert action["text"].endswith(f"\n```\n{PATCH.rstrip()}\n```")
    assert tail["text"].startswith("[Open the finding](https://gpucost.example.com/findings/8f31c2) · ")
    assert tail["footer"] == IDLE.footer


def test_what_does_not_fit_is_left_out_and_said() -> None:
    payload = mattermost.render(crowded())
    check(payload)
    notice, tail = payload["attachments"][-2:]
    assert re.match(r"\d+ more parts of this message left out here: Mattermost takes about", notice["text"])
    assert tail["text"].endswith(" · 4 more links left out here.")
    assert len(json.dumps(payload)) > 8_000
