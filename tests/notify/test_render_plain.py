"""Plain text: reads well, hides nothing, links to nothing but what the message links to."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from gpucost.notify import text
from gpucost.notify.message import MessageFact, MessageSection, NotificationMessage
from gpucost.notify.render import plain
from tests.support.hostile_messages import WORST, addresses, crowded, messages, unseen
from tests.support.sample_messages import DIGEST, IDLE, PATCH, SAMPLES


def harmless(message: NotificationMessage) -> None:
    # Code is to be copied as it stands.
    message = NotificationMessage(
        message.title,
        message.summary,
        message.tone,
        message.facts,
        tuple(
            MessageSection(part.title, part.text, part.facts, part.items, "", part.chart, part.links)
            for part in message.sections
        ),
        message.links,
        message.footer,
    )
    written = plain.render(message)
    assert written == plain.render(message)
    assert text.length(written) <= plain.MOST_UNITS
    assert not unseen(written)
    assert set(re.findall(r"\S*://\S*", written)) <= addresses(message)


@pytest.mark.fault(63)
@given(message=messages)
@settings(max_examples=8)
def test_hostile_words_hide_nothing_and_link_nowhere(message: NotificationMessage) -> None:
    harmless(message)


@pytest.mark.fault(63)
@pytest.mark.parametrize("message", WORST, ids=range(len(WORST)))
def test_the_worst_words_in_every_place(message: NotificationMessage) -> None:
    harmless(message)


def worst_are_harmless() -> None:
    for message in WORST:
        harmless(message)


@pytest.mark.parametrize("escaper", ["PLAIN"])
def test_the_worst_words_tell_when_an_escaper_is_off(escaper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, escaper, text.VERBATIM)
    with pytest.raises(AssertionError):
        worst_are_harmless()


def test_the_worst_words_tell_when_something_is_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_visible", str)
    with pytest.raises(AssertionError):
        worst_are_harmless()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_78_wide(name: str) -> None:
    long = [line for line in plain.render(SAMPLES[name]).splitlines() if len(line) > plain.WIDTH]
    assert all(line.startswith(("    #", "  https://")) for line in long)  # the patch's command, addresses


def test_a_finding() -> None:
    written = plain.render(IDLE, mention="@oncall")
    assert written.startswith(f"{IDLE.title}\n{'=' * len(IDLE.title)}\n\n@oncall Since 06:10 UTC, USD 98.40")
    assert "\nCosts  USD 30.25 an hour, USD 98.40 so far\n" in written
    assert "\n".join(f"    {line}" for line in PATCH.splitlines()) in written
    assert "\nOpen the finding:\n  https://gpucost.example.com/findings/8f31c2\n" in written
    assert written.endswith(f"\n--\n{IDLE.footer}\n")
    assert "@oncall" not in plain.render(SAMPLES["resolved"], mention="@oncall")


def test_a_digest_draws_its_charts() -> None:
    written = plain.render(DIGEST)
    assert re.search(r"^Sat 31 █+▓+▒+ +1,110$", written, re.M)
    assert "█ productive  ▓ idle  ▒ oversized" in written


def test_a_long_value_stays_in_its_column() -> None:
    written = plain.render(
        NotificationMessage(
            "T", "", facts=(MessageFact("Name", "word " * 30), MessageFact("n" * 60, "value"))
        )
    )
    lines = written.splitlines()
    assert {line[:27].strip() for line in lines if "word" in line} == {"Name", ""}
    assert f"{'n' * 60}\n{' ' * 28}value" in written


def test_what_does_not_fit_is_left_out_and_said() -> None:
    written = plain.render(crowded())
    assert re.search(
        r"^\d+ more parts of this message left out here: a message has 20,000 characters\.$", written, re.M
    )
    assert "\n4 more links left out here.\n" in written
    assert "… (cut; all of it: Everything)" in written
