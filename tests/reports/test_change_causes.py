"""Why a month cost another amount than the one before: the causes by hand, and that they always add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS
from gpucost.reports.month.change_causes import CauseKind, ChangeCause, cause_words, change_causes
from tests.reports.builders import frame, row

H100, A100 = "H100", "A100"


def held(team: str, model: str, hours: int, price: int | None) -> dict[str, object]:
    """``hours`` of a GPU at ``price`` nano-units an hour."""
    found = row(hours, team=team, model=model)
    priced = None if price is None else price * hours
    return found | {"nano": priced, "unpriced_ms": hours * HOUR_MS if price is None else 0}


def causes(now: list[dict[str, object]], before: list[dict[str, object]]) -> list[tuple[str, str, str, int]]:
    found = change_causes(frame(now), frame(before))
    return [(cause.team, cause.kind, cause.model, cause.nano) for cause in found]


def test_a_price_that_rose() -> None:
    found = causes([held("vision", H100, 100, 6 * NANO)], [held("vision", H100, 100, 4 * NANO)])
    assert found == [("vision", "price", H100, 200 * NANO)]


def test_more_hours_at_the_same_price() -> None:
    found = causes([held("vision", H100, 150, 4 * NANO)], [held("vision", H100, 100, 4 * NANO)])
    assert found == [("vision", "hours", "", 200 * NANO)]


def test_hours_that_went_to_a_dearer_model() -> None:
    now = [held("vision", H100, 100, 4 * NANO)]
    assert causes(now, [held("vision", A100, 100, 2 * NANO)]) == [("vision", "models", "", 200 * NANO)]


def test_sums_that_were_rounded_are_no_price_that_changed() -> None:
    """The same price in both months, each sum rounded by itself: hours alone, and they add up."""
    before, now = held("vision", H100, 70, 4 * NANO), held("vision", H100, 100, 4 * NANO)
    before["nano"] = 280 * NANO + 37
    assert causes([now], [before]) == [("vision", "hours", "", 120 * NANO - 37)]


def test_teams_that_came_and_went() -> None:
    found = causes([held("nlp", H100, 10, 4 * NANO)], [held("vision", H100, 100, 4 * NANO)])
    assert found == [("vision", "gone_team", "", -400 * NANO), ("nlp", "new_team", "", 40 * NANO)]


def test_all_at_once_by_hand() -> None:
    """Before 100 h H100 at 4 and 100 h A100 at 2 (mean 3); now 150 h at 5 and 50 h at 2: price 150 x 1, no
    more hours, and 50 hours that cost 2 more each."""
    before = [held("vision", H100, 100, 4 * NANO), held("vision", A100, 100, 2 * NANO)]
    now = [held("vision", H100, 150, 5 * NANO), held("vision", A100, 50, 2 * NANO)]
    assert causes(now, before) == [
        ("vision", "price", H100, 150 * NANO),
        ("vision", "models", "", 100 * NANO),
    ]


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ChangeCause(CauseKind.PRICE, "t", "c", H100, 0, 5), "H100 cost more an hour"),
        (ChangeCause(CauseKind.HOURS, "t", "", "", -HOUR_MS, -5), "1.0 GPU-hours less"),
        (ChangeCause(CauseKind.MODELS, "t", "", "", 0, -5), "cheaper models"),
        (
            ChangeCause(CauseKind.NEW_TEAM, "t", "", "", HOUR_MS, 5),
            "held nothing the month before, 1.0 GPU-hours now",
        ),
        (
            ChangeCause(CauseKind.GONE_TEAM, "t", "", "", -HOUR_MS, -5),
            "held 1.0 GPU-hours the month before, nothing now",
        ),
    ],
)
def test_in_words(cause: ChangeCause, words: str) -> None:
    assert cause_words(cause) == words


LINES = st.lists(
    st.builds(
        held,
        st.sampled_from(["vision", "nlp", "__no_team__"]),
        st.sampled_from([H100, A100, "L4"]),
        st.integers(0, 5_000),
        st.none() | st.integers(0, 20 * NANO),
    ),
    max_size=8,
)


@given(now=LINES, before=LINES)
def test_the_causes_add_up_to_the_change(
    now: list[dict[str, object]], before: list[dict[str, object]]
) -> None:
    found = change_causes(frame(now), frame(before))

    def paid(lines: list[dict[str, object]]) -> int:
        return sum(int(str(each["nano"])) for each in lines if each["nano"] is not None)

    assert sum(cause.nano for cause in found) == paid(now) - paid(before)
    again = change_causes(frame(now[::-1]), frame(before[::-1]))
    assert again == found, "the order of lines does not matter"
