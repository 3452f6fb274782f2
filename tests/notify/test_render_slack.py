"""Slack's payload, against a strict reading of Slack's documented limits."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.notify import text
from gpucost.notify.message import MessageSection, NotificationMessage
from gpucost.notify.render import slack
from tests.support.hostile_messages import WORST, addresses, crowded, messages, strings, unseen
from tests.support.sample_messages import IDLE, PATCH, SAMPLES

MENTION = "<!subteam^S012>"
_CODE = re.compile(r"\A```\n(.*)\n```\Z", re.S)


def check(payload: dict[str, Any]) -> None:
    """https://docs.slack.dev/reference/block-kit/blocks"""
    json.dumps(payload, ensure_ascii=False).encode()
    assert payload["text"]
    assert "<" not in payload["text"]
    assert payload["parse"] == "none"
    assert payload["link_names"] is False
    blocks = payload["blocks"]
    assert 1 <= len(blocks) <= 50
    assert len(json.dumps(blocks, ensure_ascii=False)) <= 13_000
    for block in blocks:
        assert set(block) <= {"type", "text", "fields", "elements"}
        match block["type"]:
            case "header":
                _plain(block["text"], 150)
            case "section":
                assert ("text" in block) != ("fields" in block)
                assert len(block.get("fields", [])) <= 10
                if "text" in block:
                    _mrkdwn(block["text"], 3000)
                for field in block.get("fields", []):
                    _mrkdwn(field, 2000)
            case "context":
                assert 1 <= len(block["elements"]) <= 10
                for element in block["elements"]:
                    _plain(element, 2000)
            case other:
                assert other == "divider"


def _plain(element: dict[str, Any], limit: int) -> None:
    assert set(element) == {"type", "text", "emoji"}
    assert element["type"] == "plain_text"
    assert element["emoji"] is False
    assert 1 <= len(element["text"].encode("utf-16-le")) // 2 <= limit
    assert "<" not in element["text"]


def _mrkdwn(element: dict[str, Any], limit: int) -> None:
    assert set(element) == {"type", "text", "verbatim"}
    assert element["type"] == "mrkdwn"
    assert element["verbatim"] is True
    assert 1 <= len(element["text"].encode("utf-16-le")) // 2 <= limit


def mrkdwn(payload: dict[str, Any]) -> list[str]:
    blocks = payload["blocks"]
    sections = [block for block in blocks if block["type"] == "section"]
    elements = [element for block in sections for element in (block.get("fields") or [block["text"]])]
    return [element["text"] for element in elements]


def harmless(message: NotificationMessage) -> None:
    payload = slack.render(message, mention=MENTION)
    check(payload)
    assert payload == slack.render(message, mention=MENTION)
    assert not set().union(*(unseen(words) for words in strings(payload)))
    allowed = addresses(message)
    for words in mrkdwn(payload):
        code = _CODE.match(words)
        if code is not None:
            assert "<" not in code[1]
            assert "```" not in code[1]
            continue
        bare = words.removeprefix(MENTION) if message.mentions else words
        for target in re.findall(r"<([^>]*)>?", bare):
            url, bar, shown = target.partition("|")
            assert bar
            assert shown
            assert url.replace("&amp;", "&") in allowed
        assert not re.search(r"(?<!\w)@\w|`", bare)
        assert not re.search(r"\*", bare.removeprefix("*").partition("\n")[0].removesuffix("*"))
    assert sum(MENTION in words for words in strings(payload)) == message.mentions


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


@pytest.mark.parametrize("escaper", ["SLACK", "SLACK_PLAIN", "SLACK_CODE"])
def test_the_worst_words_tell_when_an_escaper_is_off(escaper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, escaper, text.VERBATIM)
    with pytest.raises(AssertionError):
        worst_are_harmless()


def test_the_worst_words_tell_when_something_is_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_visible", str)
    with pytest.raises(AssertionError):
        worst_are_harmless()


@pytest.mark.fault(63)
@pytest.mark.parametrize("code", ["a: 1\n```\n<!channel> *b*\n```", "`" * 9, "```yaml"])
def test_code_cannot_end_its_block(code: str) -> None:
    """Slack's block ends at the next three backticks, whatever stands before them."""
    (words,) = mrkdwn(slack.render(NotificationMessage("T", "", sections=(MessageSection(code=code),))))
    assert re.findall("```", words) == ["```"] * 2
    assert words.startswith("```\n")
    assert words.endswith("\n```")
    plain = words[4:-4].replace("\u200b", "").replace("&lt;", "<").replace("&gt;", ">")
    assert plain == code


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_within_limits(name: str) -> None:
    check(slack.render(SAMPLES[name], mention=MENTION))


def test_a_finding_says_amount_job_team_and_action() -> None:
    payload = slack.render(IDLE, mention=MENTION)
    header, summary, fields, divider, action, patch, links, footer = payload["blocks"]
    assert header["text"]["text"] == "🟠 Idle: train-resnet holds 8 GPUs and uses none"
    assert summary["text"]["text"].startswith(f"{MENTION} Since 06:10 UTC, USD 98.40 so far")
    assert [field["text"].partition("\n")[0] for field in fields["fields"]][:3] == [
        "*Team*",
        "*Job*",
        "*Costs*",
    ]
    assert divider == {"type": "divider"}
    assert action["text"]["text"].startswith("*What to do*\nThe main process waits")
    assert patch["text"]["text"] == f"```\n{PATCH.rstrip()}\n```"
    assert "<https://gpucost.example.com/findings/8f31c2|Open the finding> · " in links["text"]["text"]
    assert footer["elements"][0]["text"] == IDLE.footer
    assert payload["text"] == f"{IDLE.title}: {IDLE.summary}"


def test_the_mention_is_written_only_where_it_is_asked_for() -> None:
    assert not any(MENTION in words for words in strings(slack.render(SAMPLES["resolved"], mention=MENTION)))


def test_what_does_not_fit_is_left_out_and_said() -> None:
    payload = slack.render(crowded())
    check(payload)
    notice, links, footer = payload["blocks"][-3:]
    assert re.match(
        r"\d+ more parts of this message left out here: Slack takes 50 blocks", notice["elements"][0]["text"]
    )
    assert links["text"]["text"].endswith(" · 4 more links left out here.")
    assert footer["elements"][0]["text"] == "gpucost"
    assert len(json.dumps(payload["blocks"])) > 9_000


@given(count=st.integers(0, 25))
@settings(max_examples=10)
def test_fields_come_in_tens(count: int) -> None:
    facts = tuple(IDLE.facts[0] for _ in range(count))
    blocks = slack.render(NotificationMessage("Title", "", facts=facts))["blocks"]
    assert [len(block["fields"]) for block in blocks[1:]] == [
        min(10, count - at) for at in range(0, count, 10)
    ]
