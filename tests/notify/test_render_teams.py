"""The adaptive card, against a strict reading of its schema and of what Teams takes."""

from __future__ import annotations

import base64
import io
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from markdown_it import MarkdownIt
from PIL import Image

from gpucost.notify import text
from gpucost.notify.message import NotificationMessage
from gpucost.notify.render import teams
from tests.support.hostile_messages import WORST, addresses, crowded, messages, strings, unseen
from tests.support.sample_messages import DIGEST, IDLE, PATCH, SAMPLES

MENTION = "On Call <oncall@example.com>"
AT = "<at>On Call</at>"
_KEYS = {
    "TextBlock": {"type", "text", "wrap", "size", "weight", "spacing", "isSubtle", "separator"},
    "Container": {"type", "style", "bleed", "items"},
    "FactSet": {"type", "facts", "separator", "spacing"},
    "Image": {"type", "url", "altText", "size", "separator", "spacing"},
    "CodeBlock": {"type", "codeSnippet", "language", "fallback", "separator", "spacing"},
    "RichTextBlock": {"type", "inlines"},
}


def check(payload: dict[str, Any]) -> None:
    """https://adaptivecards.io/explorer and 28 kB"""
    assert len(json.dumps(payload)) <= 28_000
    assert set(payload) == {"type", "attachments"}
    (attachment,) = payload["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert set(card) <= {"$schema", "type", "version", "msteams", "body", "actions"}
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.5")
    for action in card.get("actions", []):
        assert set(action) == {"type", "title", "url"}
        assert action["type"] == "Action.OpenUrl"
        assert action["title"]
    assert len(card.get("actions", [])) <= 6
    for element in elements(card):
        assert set(element) <= _KEYS[element["type"]]
        match element["type"]:
            case "TextBlock":
                assert element["text"]
                assert element["wrap"] is True
            case "FactSet":
                assert 1 <= len(element["facts"]) <= 10
                assert all(
                    set(fact) == {"title", "value"} and all(fact.values()) for fact in element["facts"]
                )
            case "Image":
                Image.open(io.BytesIO(decoded(element))).verify()
                assert element["altText"]


def decoded(image: dict[str, Any]) -> bytes:
    start, _, encoded = image["url"].partition(",")
    assert start == "data:image/png;base64"
    return base64.b64decode(encoded, validate=True)


def elements(card: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for element in card["body"]:
        found += [element, *element.get("items", [])]
        if "fallback" in element:
            found.append(element["fallback"])
    return found


def markdown(payload: dict[str, Any]) -> list[str]:
    """Every text in which Teams looks for markdown."""
    found = elements(payload["attachments"][0]["content"])
    facts = [fact for element in found for fact in element.get("facts", [])]
    return [element["text"] for element in found if element["type"] == "TextBlock"] + [
        words for fact in facts for words in fact.values()
    ]


def harmless(message: NotificationMessage) -> None:
    payload = teams.render(message, mention=MENTION)
    check(payload)
    assert payload == teams.render(message, mention=MENTION)
    assert not set().union(*(unseen(words) for words in strings(payload)))
    allowed = addresses(message)
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    for words in markdown(payload):
        bare = words.removeprefix(AT) if message.mentions else words
        tokens = [part for token in parser.parse(bare) for part in (token, *(token.children or []))]
        assert {str(token.attrs["href"]) for token in tokens if token.type == "link_open"} <= allowed
        assert not {token.type for token in tokens} & {
            "html_inline",
            "html_block",
            "image",
            "code_inline",
            "fence",
        }
        assert not re.search(r"<", bare)
    card = payload["attachments"][0]["content"]
    assert {action["url"] for action in card.get("actions", [])} <= allowed
    assert len(card["msteams"].get("entities", [])) == message.mentions


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


@pytest.mark.parametrize("escaper", ["TEAMS"])
def test_the_worst_words_tell_when_an_escaper_is_off(escaper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, escaper, text.VERBATIM)
    with pytest.raises(AssertionError):
        worst_are_harmless()


def test_the_worst_words_tell_when_something_is_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_visible", str)
    with pytest.raises(AssertionError):
        worst_are_harmless()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_within_limits(name: str) -> None:
    check(teams.render(SAMPLES[name], mention=MENTION))


def test_a_finding_says_amount_job_team_and_action() -> None:
    card = teams.render(IDLE, mention=MENTION)["attachments"][0]["content"]
    head, facts, title, words, code, footer = card["body"]
    assert head["style"] == "warning"
    assert head["items"][1]["text"].startswith(f"{AT} Since 06:10 UTC, USD 98.40 so far")
    assert facts["facts"][2] == {"title": "Costs", "value": "USD 30.25 an hour, USD 98.40 so far"}
    assert title["text"] == "What to do"
    assert title["separator"] is True
    assert words["text"].startswith("The main process waits")
    assert code["codeSnippet"] == PATCH.rstrip()
    assert footer["isSubtle"] is True
    assert [action["title"] for action in card["actions"]] == [link.text for link in IDLE.links]
    assert card["msteams"]["entities"] == [
        {"type": "mention", "text": AT, "mentioned": {"id": "oncall@example.com", "name": "On Call"}}
    ]


def test_charts_are_pictures_where_they_fit() -> None:
    images = [
        element
        for element in teams.render(DIGEST)["attachments"][0]["content"]["body"]
        if element["type"] == "Image"
    ]
    assert len(images) == 2
    assert images[1]["altText"].startswith("Wasted, by cause, in USD. Idle: USD 4,716 (58%); Oversized")


def test_charts_are_bars_of_text_where_pictures_have_no_room() -> None:
    chart = next(section for section in DIGEST.sections if section.chart is not None)
    payload = teams.render(NotificationMessage("Many", "", sections=(chart,) * 5))
    check(payload)
    kinds = [element["type"] for element in payload["attachments"][0]["content"]["body"]]
    assert kinds.count("CodeBlock") == 5
    assert "Image" not in kinds


def test_what_does_not_fit_is_left_out_and_said() -> None:
    payload = teams.render(crowded())
    check(payload)
    notice, footer = payload["attachments"][0]["content"]["body"][-2:]
    assert re.match(r"\d+ more parts of this message left out here: Teams takes 28 kB\.", notice["text"])
    assert footer["text"] == "gpucost 4 more links left out here."
    assert len(json.dumps(payload)) > 10_000
