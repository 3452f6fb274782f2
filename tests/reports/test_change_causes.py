"""Why a month cost another amount than the one before: the causes by hand, and that they always add up."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS
from gpucost.reports.month.change_causes import (
    CauseKind,
    ChangeCause,
    SpanLines,
    SpanTime,
    cause_words,
    change_causes,
    explain,
)
from gpucost.reports.month.cost_incidents import IncidentRule, signs_of
from tests.reports.builders import START_MS, frame, row

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


def test_time_that_lost_its_price_is_no_time_that_went() -> None:
    """As many hours as before, 40 of them without a price; then none has one; then in neither month."""
    before = [held("vision", H100, 100, 4 * NANO)]
    now = [held("vision", H100, 60, 4 * NANO), held("vision", H100, 40, None)]
    assert causes(now, before) == [("vision", "unpriced", "", -160 * NANO)]
    assert causes(before, now) == [("vision", "unpriced", "", 160 * NANO)]
    bare = [held("vision", H100, 100, None)]
    assert causes(bare, before) == [("vision", "unpriced", "", -400 * NANO)]
    assert causes(bare, bare) == []


def test_time_that_got_a_price_is_no_excess() -> None:
    """Four weeks of 200 hours each, half of them without a price, and a week of 200 that all have one."""
    hours = [held("vision", H100, 400, 4 * NANO), held("vision", H100, 400, None)]
    base = SpanLines(frame(hours), SpanTime(28 * 24 * HOUR_MS))
    week = SpanLines(frame([held("vision", H100, 200, 4 * NANO)]), SpanTime(7 * 24 * HOUR_MS))
    assert signs_of(0, week, base, IncidentRule())["vision"].excess_nano == 0


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
            "nothing seen before, 1.0 GPU-hours now",
        ),
        (
            ChangeCause(CauseKind.GONE_TEAM, "t", "", "", -HOUR_MS, -5),
            "held 1.0 GPU-hours before, nothing seen now",
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


# --- down to patterns of jobs, gaps, lengths, currencies ------------------------------------------------

MONTH_MS = 30 * 24 * HOUR_MS


def ran(
    job: str, gpus: int, hours: int, *, team: str = "vision", model: str = H100, price: int = 4 * NANO
) -> dict[str, object]:
    """One job that held ``gpus`` for ``hours``."""
    found = held(team, model, gpus * hours, price)
    last_ms = START_MS + hours * HOUR_MS
    return found | {"namespace": team, "job": job, "job_uid": f"{team}-{job}", "last_ms": last_ms}


def kinds(now: SpanLines, before: SpanLines) -> list[tuple[str, str, int]]:
    return [(each.kind, each.pattern, each.nano) for each in explain(now, before).get("vision", ())]


def lines(*rows: dict[str, object], time: SpanTime | None = None, **more: object) -> SpanLines:
    return SpanLines(frame(rows), time, **more)  # type: ignore[arg-type]


BEFORE = lines(ran("train-1", 8, 10), ran("train-2", 8, 10))


@pytest.mark.parametrize(
    ("now", "cause"),
    [
        ([ran(f"train-{n}", 8, 10) for n in range(4)], ("runs", "vision/train-*", 640 * NANO)),
        ([ran("train-3", 16, 10), ran("train-4", 16, 10)], ("gpus", "vision/train-*", 640 * NANO)),
        ([ran("train-3", 8, 20), ran("train-4", 8, 20)], ("run_time", "vision/train-*", 640 * NANO)),
        (
            [ran("train-3", 8, 10, model=A100, price=8 * NANO), ran("train-4", 8, 10)],
            ("models", "vision/train-*", 320 * NANO),
        ),
        (
            [ran("train-3", 8, 10), ran("train-4", 8, 10), ran("sweep-a", 8, 10)],
            ("new_pattern", "vision/sweep-a", 320 * NANO),
        ),
        (
            [ran("train-3", 8, 10, price=5 * NANO), ran("train-4", 8, 10, price=5 * NANO)],
            ("price", "", 160 * NANO),
        ),
    ],
)
def test_the_cause_is_the_one_thing_that_changed(
    now: list[dict[str, object]], cause: tuple[str, str, int]
) -> None:
    assert kinds(lines(*now), BEFORE) == [cause]


def test_a_gap_is_no_drop_in_spend() -> None:
    """Half of the telemetry is missing, and so half of the cost: that is the cause, and nothing else."""
    times = [SpanTime(MONTH_MS, {"east": MONTH_MS}, {"east": ms}) for ms in (MONTH_MS, MONTH_MS // 2)]
    before = lines(ran("train-1", 8, 10), ran("train-2", 8, 10), time=times[0])
    assert kinds(lines(ran("train-3", 8, 10), time=times[1]), before) == [("missing_data", "", -320 * NANO)]


def test_a_longer_month_is_longer() -> None:
    times = [SpanTime(days * 24 * HOUR_MS) for days in (31, 30)]
    now, before = (
        lines(ran("a", 1, days * 24), time=time) for days, time in zip((31, 30), times, strict=True)
    )
    found = kinds(now, before)
    assert found == [("span", "", 96 * NANO)]


def test_what_nobody_held_is_idle_and_what_is_unknown_is_missing() -> None:
    idle, unknown = ({"bucket": bucket} for bucket in ("unallocated", "unknown"))
    now = lines(row(100, **idle), row(10, **unknown))
    found = explain(now, lines(row(50, **idle), row(30, **unknown)))
    assert {team: [each.kind for each in causes] for team, causes in found.items()} == {
        "__unallocated__": ["idle"],
        "__unknown__": ["missing_data"],
    }


SPANS = st.builds(
    lambda rows, observed, length, adjusted, rate: SpanLines(
        frame(rows),
        SpanTime(length, {"east": length}, {"east": length * observed // 100}),
        adjusted,
        rate,
    ),
    st.lists(
        st.builds(
            lambda job, gpus, hours, team, model, price: ran(
                job, gpus, hours, team=team, model=model, price=price
            ),
            st.sampled_from(["train-1", "train-2", "sweep-a", "x"]),
            st.integers(1, 16),
            st.integers(0, 700),
            st.sampled_from(["vision", "nlp"]),
            st.sampled_from([H100, A100]),
            st.integers(0, 20 * NANO),
        ),
        max_size=6,
    ),
    st.integers(0, 100),
    st.integers(1, 31).map(lambda days: days * 24 * HOUR_MS),
    st.dictionaries(st.sampled_from(["vision", "gone"]), st.integers(-(10**12), 10**12), max_size=2),
    st.fractions(Fraction(1, 2), Fraction(2), max_denominator=1000),
)


@given(now=SPANS, before=SPANS)
def test_causes_of_any_two_spans_add_up_to_the_nano_unit(now: SpanLines, before: SpanLines) -> None:
    """Gaps, lengths, prices, currencies, adjustments, teams that come and go."""

    def shown(span: SpanLines, team: str) -> int:
        own = span.lines[span.lines["team"] == team]["nano"]
        return round(int(own.sum()) * span.rate) + span.adjusted.get(team, 0)

    for team, causes in explain(now, before).items():
        assert sum(each.nano for each in causes) == shown(now, team) - shown(before, team)
        assert all(cause_words(each) for each in causes)
