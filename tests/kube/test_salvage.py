"""Lists with objects in them that no parser takes, or that are too large to be read."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.kube.parse.events import (
    ListPage,
    Unreadable,
    head_of,
    page_of,
)
from tests.support.kube import pod

DEEP = "[" * 1500 + "]" * 1500
DEEPER = "[" * 10_000 + "]" * 10_000
"""Also where a test may go deeper than a program."""
LONG = "9" * 5000
"""Python takes no integer of more than 4300 digits."""


def claim(uid: str, parameters: str) -> str:
    """One with opaque parameters, as Go writes it."""
    text = json.dumps({"metadata": {"name": "c", "uid": uid}, "spec": {"parameters": "@"}, "status": {}})
    return text.replace('"@"', parameters)


def body(*items: str, version: str = "9", token: str = "") -> bytes:
    metadata = json.dumps({"resourceVersion": version, "continue": token})
    return f'{{"kind": "List", "metadata": {metadata}, "items": [{", ".join(items)}]}}\n'.encode()


def unread(page: ListPage) -> list[tuple[str, str]]:
    return [(error.reason, error.uid) for error in page.unread]


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "bad",
    [DEEP, LONG, '{"a": "\x01"}', "nul", f'{{"brackets ]}}": [{LONG}], "quote \\"": "\\\\"}}'],
    ids=["deep", "long", "control", "word", "brackets"],
)
def test_an_object_that_no_parser_takes_is_left_out_and_named(bad: str) -> None:
    good = json.dumps(pod("a"))
    page = page_of(body(good, claim("bad", bad), good, claim("", bad), token="more"))
    assert page.items == [pod("a"), pod("a")]
    assert (page.resource_version, page.token) == ("9", "more")
    assert unread(page) == [("bad_object", "bad"), ("bad_object", "")]


@pytest.mark.parametrize("bad", [DEEP, LONG, "nul"])
def test_items_that_are_no_objects_at_all_are_left_out_too(bad: str) -> None:
    assert unread(page_of(body(bad, claim("u", bad)))) == [("bad_object", ""), ("bad_object", "u")]


def test_text_that_is_not_utf_8_is_read_with_a_mark_in_its_place() -> None:
    page = page_of(body(json.dumps(pod("a"))).replace(b'"a"', b'"a\xff"'))
    assert [item["metadata"]["name"] for item in page.items] == ["a�"]
    assert not page.unread


@given(
    items=st.lists(
        st.sampled_from([DEEPER, LONG, "nul"])
        | st.recursive(
            st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["metadata", "uid", "items", '"{']), inner, max_size=3)
            ),
            max_leaves=6,
        ).map(json.dumps),
        max_size=4,
    ),
    data=st.data(),
)
def test_all_that_can_be_read_is_and_no_part_passes_for_the_whole(items: list[str], data: Any) -> None:
    whole = body(*items)
    bad = [item for item in items if item in (DEEPER, LONG, "nul")]
    page = page_of(whole)
    assert page.items == [json.loads(item) for item in items if item not in bad]
    assert len(page.unread) == len(bad)
    cut = data.draw(st.integers(0, len(whole) - 2))
    with pytest.raises(Unreadable):
        page_of(whole[:cut])
    with pytest.raises(Unreadable):
        page_of(whole + data.draw(st.sampled_from([b"x", b"}", b"{}", b"[]"])))


@given(st.binary(max_size=80) | st.text('{}[]",:\\ a9items', max_size=80).map(str.encode))
def test_no_answer_at_all_raises_anything_else(answer: bytes) -> None:
    for read in (page_of, head_of):
        with suppress(Unreadable):
            read(answer)


def test_the_head_says_which_object_it_is_and_where_the_list_goes_on() -> None:
    whole = body(claim("large", json.dumps("<" * 1000).replace("<", "\\u003c")), version="7", token="more")
    for length in (500, len(whole) - 1):
        page = head_of(whole[:length])
        assert (page.items, page.resource_version, page.token) == ([], "7", "more")
        assert unread(page) == [("too_large", "large")]
    assert unread(head_of(whole[: whole.index(b'"uid"')])) == [("too_large", "")]
    with pytest.raises(Unreadable):
        head_of(whole[:30])
