"""Answers of tools: short enough, honest about what they leave out, with nothing that is not seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucost.api.tools.tool_answers import MOST_CHARACTERS, concise, parted


def rows(count: int, inner: int = 0, words: str = "x" * 100) -> list[dict[str, Any]]:
    inside = [{"m": m, "words": words} for m in range(inner)]
    return [{"n": n, "words": words, "parts": inside} for n in range(count)]


def test_a_short_answer_is_whole() -> None:
    found = {"a": rows(3, 2), "words": ["x"] * 30, "b": None}
    assert concise(found, top=10, most_top=50).document() == {"answer": found, "more": []}


def test_lists_inside_of_rows_give_way_first() -> None:
    found = concise({"a": rows(10, 30, "x" * 200)}, top=10, most_top=50)
    assert len(json.dumps(found.answer)) <= MOST_CHARACTERS
    assert len(found.answer["a"]) == 10
    (left,) = found.more
    assert (left.what, left.shown, left.all, left.ask) == ("a[].parts", 30, 300, None)


def test_rows_give_way_then_and_more_can_be_asked_for_only_where_there_is_more() -> None:
    found = concise({"a": rows(200), "b": rows(4)}, top=50, most_top=50)
    assert [(each.what, each.shown, each.all, each.ask) for each in found.more] == [("a", 50, 200, None)]
    found = concise({"a": rows(200, 0, "x" * 1_000)}, top=50, most_top=50)
    assert len(json.dumps(found.answer)) <= MOST_CHARACTERS
    (left,) = found.more
    assert (left.what, left.shown, left.all, left.ask) == ("a", 12, 200, {"top": 50})
    (left,) = concise({"a": rows(20)}, top=7, most_top=50).more
    assert left.ask == {"top": 20}


def test_no_row_of_a_page_is_dropped() -> None:
    found = concise({"rows": rows(40, 3, "x" * 500)}, top=40, most_top=50, whole=("rows",))
    assert [row["n"] for row in found.answer["rows"]] == list(range(40))
    assert [each.what for each in found.more] == ["rows[].parts"]


def test_an_integer_goes_where_its_text_stands_beside_it() -> None:
    found = {"nano": 1, "cost": "0.000000001", "board_ms": 1, "unpriced_nano": 3, "span_ms": 4}
    found |= {"kwh": None, "mj": None}
    expected = {"cost": "0.000000001", "board_ms": 1, "unpriced_nano": 3, "span_ms": 4, "kwh": None}
    assert concise(found, top=1, most_top=1).answer == expected


def test_parts_that_are_left_out_are_named_unless_they_are_empty() -> None:
    found = parted({"a": 1, "b": [1, 2], "c": [], "d": {"x": 1}, "other": 2}, ["a"], ["a", "b", "c", "d"])
    assert found.answer == {"a": 1, "other": 2}
    assert [each.document() for each in found.more] == [
        {"what": "b", "shown": 0, "all": 2, "ask": {"parts": ["b"]}},
        {"what": "d", "shown": 0, "all": None, "ask": {"parts": ["d"]}},
    ]


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\U000e0041", "\x1b", "\u2028", "\x7f", "\u2066"])
def test_no_order_hides_in_a_name(hidden: str) -> None:
    found = concise({"job": f"a{hidden}b", f"k{hidden}": ["é 中\n  x: 1"]}, top=1, most_top=1)
    text = json.dumps(found.document(), ensure_ascii=False)
    assert hidden not in text
    assert found.answer["job"].startswith("a\\")
    assert "é 中\\n  x: 1" in text
