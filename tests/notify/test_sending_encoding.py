"""Messages as JSON: what is written is what is read, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.notify.message import (
    ChartBar,
    MessageChart,
    MessageFact,
    MessageLink,
    MessageSection,
    MessageTone,
    NotificationMessage,
    UnreadableMessage,
    message_from_json,
    message_to_json,
)

WORDS = st.text(max_size=20)
CHARTS = st.builds(
    MessageChart,
    title=WORDS,
    unit=WORDS,
    series=st.tuples(WORDS),
    colours=st.tuples(WORDS),
    bars=st.lists(
        st.builds(ChartBar, label=WORDS, parts=st.tuples(st.none() | st.integers(0, 2**63)), shown=WORDS),
        max_size=2,
    ).map(tuple),
    upright=st.booleans(),
)
SECTIONS = st.builds(
    MessageSection,
    title=WORDS,
    text=WORDS,
    facts=st.lists(st.builds(MessageFact, WORDS, WORDS), max_size=2).map(tuple),
    items=st.lists(WORDS, max_size=2).map(tuple),
    code=WORDS,
    chart=st.none() | CHARTS,
    links=st.lists(st.builds(MessageLink, WORDS, WORDS), max_size=2).map(tuple),
)
MESSAGES = st.builds(
    NotificationMessage,
    title=WORDS,
    summary=WORDS,
    tone=st.sampled_from(MessageTone),
    sections=st.lists(SECTIONS, max_size=3).map(tuple),
    footer=WORDS,
    mentions=st.booleans(),
)


@given(MESSAGES)
def test_a_message_comes_back(message: NotificationMessage) -> None:
    written = message_to_json(message)
    assert message_from_json(written) == message
    written.encode()
    assert "\0" not in written


def changed(**values: Any) -> str:
    found = json.loads(message_to_json(NotificationMessage("title", "summary")))
    return json.dumps({**found, "message": {**found["message"], **values}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"version": 1}',
        message_to_json(NotificationMessage("title", "summary")).replace('"version":1', '"version":2'),
        message_to_json(NotificationMessage("title", "summary"))[:-1] + ',"more":1}',
        changed(unknown="field"),
        changed(title=None),
        changed(title=5),
        changed(mentions="yes"),
        changed(tone="loud"),
        changed(facts=[{"name": "a", "value": "b", "html": "<b>"}]),
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UnreadableMessage):
        message_from_json(text)
