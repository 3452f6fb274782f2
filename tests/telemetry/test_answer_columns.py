"""Answers are checked a column at a time, over all series together: as each series alone would be."""

from __future__ import annotations

import contextlib
import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import AnswerRefused, SourceError, SourceUnreachable
from gpucost.telemetry.prometheus.query_response import AnsweredLabels, QueryResponse, checked, parse

SERVER, START, STEP = "http://prometheus", 1_790_812_800_000, 60_000
INSTANTS = st.sampled_from([START, START + STEP, START + 2 * STEP, START + 3 * STEP, START + 90_000])
ODD = st.sampled_from([START - STEP, START + 9 * STEP, START + 1, START - STEP // 2])
POINTS = st.one_of(
    st.lists(INSTANTS, max_size=4, unique=True).map(sorted),
    st.lists(st.one_of(INSTANTS, ODD), max_size=4),
)
NAMES = st.sampled_from("abcdef")


def matrix(series: list[tuple[str, list[int]]]) -> list[dict[str, Any]]:
    return [{"metric": {"pod": name}, "values": [[at / 1000, "1"] for at in times]} for name, times in series]


def refusal(result: list[dict[str, Any]], step_ms: int) -> str | None:
    try:
        checked(SERVER, QueryResponse(result), START, START + 3 * STEP, step_ms)
    except SourceError as error:
        return str(error)
    return None


@given(st.lists(st.tuples(NAMES, POINTS), max_size=5), st.sampled_from([1, STEP]))
def test_what_is_refused_of_many_series_is_what_is_refused_of_one(
    series: list[tuple[str, list[int]]], step_ms: int
) -> None:
    result, seen, expected = matrix(series), set[str](), None
    for one in result:
        if not one["values"]:
            continue
        name = one["metric"]["pod"]
        again = refusal([{**one, "values": [[START / 1000, "1"]]}] * 2, step_ms)
        expected = expected or (again if name in seen else refusal([one], step_ms))
        seen.add(name)
    assert refusal(result, step_ms) == expected


GOOD: list[Any] = [[1790812800, "1"], [1790812800.5, "NaN"], [0, "+Inf"], [-1.5, "1e300"]]
BAD: list[Any] = [
    *([1790812800, 1], ["1790812800", "1"], [1790812800], [1, "1", "1"], [True, "1"], [1, "one"], [1, None]),
    *([1e300, "1"], [10**400, "1"], [-(10**15), "1"], None, {}, "1", [None, "1"]),
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("kind", ["matrix", "vector"])
def test_one_bad_point_among_many_makes_an_answer_none(kind: str, bad: object) -> None:
    def answer(points: list[Any]) -> bytes:
        entries = [
            {"metric": {"n": str(at)}, **({"values": [each]} if kind == "matrix" else {"value": each})}
            for at, each in enumerate(points)
        ]
        return json.dumps({"status": "success", "data": {"resultType": kind, "result": entries}}).encode()

    assert len(parse(SERVER, 200, answer(GOOD)).result) == len(GOOD)
    for at in range(len(GOOD) + 1):
        with pytest.raises(SourceError, match="does not speak the Prometheus API"):
            parse(SERVER, 200, answer([*GOOD[:at], bad, *GOOD[at:]]))


@pytest.mark.parametrize("body", [b'{"status":"success","data":[]}', b"no JSON", b"[" * 100_000])
def test_reading_an_answer_leaves_the_collector_as_it_was(body: bytes) -> None:
    def read() -> None:
        with contextlib.suppress(SourceError):
            parse(SERVER, 200, body)

    assert gc.isenabled()
    read()
    assert gc.isenabled()
    gc.disable()
    try:
        read()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_labels_of_a_matrix_are_read_once_for_all_answers() -> None:
    sets = ['{"b":"2","a":"1"}', '{"a":"1","b":"2"}', '{"a":"\\u00e9"}']

    def body(*chosen: str) -> bytes:
        series = (f'{{"metric":{each},"values":[[1790812800,"1"]]}}' for each in chosen)
        return (
            f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(series)}]}}}}'.encode()
        )

    known = AnsweredLabels()
    one, two = (parse("http://prometheus", 200, body(*each), known=known) for each in (sets[:1], sets[1:]))
    assert one.table is not None
    assert two.table is not None
    assert one.table.catalog is two.table.catalog
    assert (one.table.codes.tolist(), two.table.codes.tolist()) == ([0], [0, 1])
    assert two.table.rows == [each["metric"] for each in two.result] == [{"a": "1", "b": "2"}, {"a": "é"}]
    assert one.columns is not None
    assert one.columns.values.tolist() == [1.0]
    with pytest.raises(SourceUnreachable, match="does not speak"):
        parse("http://prometheus", 200, body('{"a":1}'), known=known)
    # In whatever order its labels are.
    twice = parse("http://prometheus", 200, body(*sets[:2]), known=known)
    with pytest.raises(AnswerRefused, match="each series once"):
        checked("http://prometheus", twice, 1_790_812_800_000, 1_790_812_800_000)
