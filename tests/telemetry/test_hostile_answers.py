"""What stands in front of Prometheus, or Prometheus itself, answers what no such question has.

A real Prometheus is asked; its answers are damaged on the way. No GPU time may be invented or moved: what was
read is what it was, or the window is not read, or a problem says what is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.attribution.attribute import attribute
from gpucost.attribution.conservation import difference
from gpucost.domain.errors import AnswerRefused, NotCovered, SourceUnreachable
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.interval_source import IntervalSource
from gpucost.telemetry.prometheus.api_client import ClientSettings, PrometheusClient
from gpucost.telemetry.prometheus.query_response import ResultSeries
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.damaged_prometheus import (
    Damage,
    DamagedPrometheus,
    Document,
    Question,
    as_it_is,
    damaged_prometheus,
)
from tests.support.existing.text import Writer
from tests.support.frames import FlatRates, NamespaceTeams
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus
from tests.telemetry.test_forged_series import HONEST, SEEN, SPAN, T0

pytestmark = [needs_prometheus, pytest.mark.prometheus]

WINDOW = Window(T0 + HOUR_MS, T0 + 3 * HOUR_MS)
PRICES = FlatRates(("2.50", 0))
DIALECTS = ("own", "seen")
HELD, SIGNALS = "board_ms", ("busy_ms", "observed_ms")
Points = list[list[Any]]
Read = dict[str, object]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DamagedPrometheus]:
    data = tmp_path_factory.mktemp("hostile") / "data"
    writer = Writer()
    for dialect, targets in zip(DIALECTS, (HONEST, SEEN), strict=True):
        for target in targets:
            target.add(writer, dialect)
    create_blocks(writer.text(), data)
    with running_prometheus(data) as real, damaged_prometheus(real) as between:
        yield between


def read(server: DamagedPrometheus, dialect: str, damage: Damage) -> tuple[Read, set[str]]:
    """Held and used time by line, and problems. Everything that must hold of any answer is asserted."""
    server.answers_with(damage)
    options = PrometheusSourceSettings(replica_labels=("instance",))
    with PrometheusClient(server.url, settings=ClientSettings(attempts=1)) as client:
        source: IntervalSource = PrometheusSource(client, options, now=lambda: SPAN.end_ms)
        if dialect == "seen":
            source = UpstreamSource(client, options, UpstreamSettings(), now=lambda: SPAN.end_ms)
        frames = source.read(dialect, WINDOW)
    result = attribute(frames, [WINDOW], rates=PRICES, teams=NamespaceTeams())
    flat = result.flat()
    assert difference(flat, frames, WINDOW, PRICES).is_zero
    assert (flat[HELD] >= 0).all()
    for name in SIGNALS:
        assert flat[name].dropna().between(0, flat[HELD].max()).all()
    columns = flat[["bucket", "pod_uid", HELD]].itertuples(index=False)
    return {"held": sorted(map(tuple, columns))}, {str(problem) for problem in result.problems}


@pytest.fixture(scope="module")
def good(server: DamagedPrometheus) -> dict[str, tuple[Read, set[str]]]:
    return {dialect: read(server, dialect, as_it_is) for dialect in DIALECTS}


def points_of(series: ResultSeries) -> Points:
    found: Points = series["values"] if "values" in series else [series["value"]]
    return found


def changed(change: Callable[[Points], Points], path: str = "") -> Damage:
    """Every series of every answer, or of those to one path, with its points changed so."""

    def damage(question: Question, answer: Document) -> Document:
        if isinstance(answer["data"], dict) and question.path.endswith(path):
            for series in answer["data"]["result"]:
                new = change(points_of(series))
                series.update({"values": new} if "values" in series else {"value": new[0]})
        return answer

    return damage


def result_of(change: Callable[[list[ResultSeries]], object]) -> Damage:
    def damage(question: Question, answer: Document) -> Document:
        del question
        if isinstance(answer["data"], dict):
            answer["data"]["result"] = change(answer["data"]["result"])
        return answer

    return damage


def moved(seconds: float) -> Callable[[Points], Points]:
    return lambda points: [[at + seconds, value] for at, value in points]


RANGE = "/query_range"
REFUSED: dict[str, Damage] = {
    "twice": changed(lambda points: [point for point in points for _ in range(2)]),
    "twice-with-other-values": changed(lambda points: [p for at, v in points for p in ([at, v], [at, "9"])]),
    "out-of-order": changed(lambda points: points[::-1] if len(points) > 1 else [*points, *points]),
    "one-out-of-order": changed(lambda points: [*points[1:], points[0]]),
    "future": changed(lambda points: [*points, [points[-1][0] + 86_400, points[-1][1]]]),
    "past": changed(lambda points: [[points[0][0] - 86_400, points[0][1]], *points]),
    "moved-by-a-day": changed(moved(86_400)),
    "range-moved-back-by-a-step": changed(moved(-7_200), RANGE),
    "range-moved-on": changed(moved(0.5), RANGE),
    "range-off-its-steps": changed(lambda points: [*points[:1], *moved(-1)(points[1:])], RANGE),
    "instant-in-1e9-years": changed(moved(1e9)),
    "series-twice": result_of(lambda result: [*result, *result]),
    "series-twice-with-other-values": result_of(
        lambda result: [*result, *({**each, "values": [[T0 / 1000, "9"]]} for each in result)]
    ),
    "labels-missing": result_of(lambda result: [{**each, "metric": {}} for each in result]),
    "labels-that-are-no-text": result_of(
        lambda result: [{**each, "metric": dict.fromkeys(each["metric"], 7)} for each in result]
    ),
    "half-a-surrogate-pair": result_of(
        lambda result: [{**each, "metric": dict.fromkeys(each["metric"], "\ud800")} for each in result]
    ),
    "no-number": changed(lambda points: [[at, "one"] for at, _ in points]),
    "numbers-that-are-no-text": changed(lambda points: [[at, 1.0] for at, _ in points]),
    "another-kind": lambda _, answer: {**answer, "data": {"resultType": "scalar", "result": [1, "1"]}},
    "no-result": lambda _, answer: {**answer, "data": {"resultType": "vector"}},
    "status-of-an-error": lambda _, answer: {**answer, "status": "error", "error": "no"},
    "warnings-that-are-no-list": lambda _, answer: {**answer, "warnings": "store x is down"},
}
FROM = {"own": 4, "seen": 6}
"""The first question for values: those before are for label sets."""


@pytest.mark.fault(23)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_such_question_has_is_refused_with_what_is_allowed(
    server: DamagedPrometheus, dialect: str, name: str
) -> None:
    with pytest.raises((AnswerRefused, SourceUnreachable), match=r"is not allowed; allowed: |does not speak"):
        read(server, dialect, lambda question, answer: (
            REFUSED[name](question, answer) if question.number >= FROM[dialect] else answer
        ))  # fmt: skip


@pytest.mark.fault(23)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_series_without_points_are_none(
    server: DamagedPrometheus, good: dict[str, tuple[Read, set[str]]], dialect: str
) -> None:
    def damage(question: Question, answer: Document) -> Document:
        del question
        if isinstance(answer["data"], dict) and answer["data"]["resultType"] == "matrix":
            answer["data"]["result"].insert(0, {"metric": {"job": "nobody"}, "values": []})
        return answer

    assert read(server, dialect, damage) == good[dialect]


NONSENSE = ("NaN", "+Inf", "-Inf", "-1", "-3e9", "1e308", "5e-324", "0.5")


@pytest.mark.fault(23)
@settings(max_examples=40, deadline=None)
@given(
    dialect=st.sampled_from(DIALECTS),
    numbers=st.sets(st.integers(0, 50), min_size=1, max_size=3),
    value=st.sampled_from(NONSENSE),
    part=st.integers(1, 3),
)
def test_values_that_make_no_sense_move_no_gpu_time(
    server: DamagedPrometheus,
    good: dict[str, tuple[Read, set[str]]],
    dialect: str,
    numbers: set[int],
    value: str,
    part: int,
) -> None:
    """In any answers, in every value or every second or third one."""
    nonsense = changed(
        lambda points: [[at, value if n % part == 0 else was] for n, (at, was) in enumerate(points)]
    )
    rows, problems = good[dialect]
    try:
        found, told = read(server, dialect, lambda question, answer: (
            nonsense(question, answer) if question.number in numbers else answer
        ))  # fmt: skip
    except (AnswerRefused, NotCovered):
        return
    assert found == rows or told - problems, "moved without a word"
