"""Reads: sums against pandas, what a scope sees, and the same bytes from both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.query import DIMENSIONS, MEASURES
from tests.ledger.builders import (
    CLUSTER,
    MONTH,
    NOW_MS,
    RATES,
    hour,
    ingest,
    line,
    lines,
    progress,
    random_rows,
)
from tests.support.ledgers import Prepare, new_ledger

HOURS = 6
WHOLE = Window(hour(0).start_ms, hour(HOURS - 1).end_ms)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def all_lines() -> pd.DataFrame:
    return _all_lines().copy()


@cache
def _all_lines() -> pd.DataFrame:
    return lines(*(row for number in range(HOURS) for row in random_rows(1, hour(number))))


def fill(ledger: Ledger, seed: int = 1) -> None:
    for number in range(HOURS):
        ingest(ledger, hour(number), *random_rows(seed, hour(number)))


def write_hours(url: str) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        fill(ledger)


@pytest.fixture
def hours(copy_of: Callable[[Prepare], str]) -> Iterator[Ledger]:
    """A ledger with what ``all_lines`` gives, on either database."""
    with Ledger.open(copy_of(write_hours), now=lambda: NOW_MS) as opened:
        yield opened


def expected(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The aggregate in plain Python: every sum an exact integer, null where nothing was there."""
    with_sm = frame["sm_observed_ms"].where(frame["tensor_active_ms"].notna())
    frame = frame.assign(tensor_observed_ms=frame["tensor_observed_ms"].fillna(with_sm))
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in frame.to_dict("records"):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    rows = []
    for key in sorted(groups):
        row = dict(zip(keys, key, strict=True))
        for name in MEASURES:
            source = "board_ms" if name == "unpriced_ms" else name
            found = [
                line_[source]
                for line_ in groups[key]
                if not pd.isna(line_[source]) and (name != "unpriced_ms" or pd.isna(line_["nano"]))
            ]
            reduce = {"first_ms": min, "last_ms": max, "memory_peak_mib": max}.get(name, sum)
            row[name] = reduce(found) if found else (0 if name == "unpriced_ms" else None)
        rows.append(row)
    nullable = set(MEASURES) - {"board_ms", "unpriced_ms", "first_ms", "last_ms"}
    types = {name: "Int64" if name in nullable else "int64" for name in MEASURES}
    types |= {key: "int64" if key == "step_start_ms" else "str" for key in keys}
    return pd.DataFrame(rows, columns=[*keys, *MEASURES]).astype(types)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    path = tmp_path_factory.mktemp("filled") / "ledger.db"
    with Ledger.open(new_ledger(path), now=lambda: NOW_MS) as opened:
        fill(opened)
        yield opened


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dims=st.lists(st.sampled_from(DIMENSIONS), max_size=4, unique=True),
    step_hours=st.sampled_from([None, 1, 2, 4, 24]),
)
def test_sums_are_exact_by_any_dimensions_and_step(
    filled: Ledger, dims: list[str], step_hours: int | None
) -> None:
    step_ms = None if step_hours is None else step_hours * HOUR_MS
    found = filled.aggregate(EVERYTHING, WHOLE, dims, step_ms=step_ms)
    frame, keys = all_lines(), list(dims)
    if step_ms is not None:
        frame["step_start_ms"] = (frame.window_start_ms // step_ms * step_ms).astype("int64")
        keys.append("step_start_ms")
    pd.testing.assert_frame_equal(found, expected(frame, keys))


def test_sums_on_both_databases(hours: Ledger) -> None:
    keys = ["team", "model", "bucket", "job_uid"]
    pd.testing.assert_frame_equal(hours.aggregate(EVERYTHING, WHOLE, keys), expected(all_lines(), keys))


def test_both_databases_give_the_same_bytes(sqlite_url: str, postgres_url: str) -> None:
    texts = []
    for url in (sqlite_url, postgres_url):
        with Ledger.open(url, now=lambda: NOW_MS) as ledger:
            fill(ledger)
            texts.append(
                [
                    ledger.aggregate(scope, WHOLE, list(dims), step_ms=step_ms).to_csv()
                    for scope in (EVERYTHING, Scope(frozenset({"éclair", "Red"})))
                    for dims in (DIMENSIONS, ("team", "bucket"), ())
                    for step_ms in (None, HOUR_MS)
                ]
            )
    assert texts[0] == texts[1]
    teams = pd.Series(["Red", "_ops", "blue", "red", "zebra", "éclair"])
    assert sorted(teams) == teams.tolist(), "code-point order, which the test's PostgreSQL does not sort by"


def test_a_team_sees_its_own_held_and_overcommitted_lines_only(hours: Ledger) -> None:
    seen = hours.aggregate(Scope(frozenset({"red"})), WHOLE, ["team", "bucket"])
    assert set(zip(seen.team, seen.bucket, strict=True)) == {("red", "held"), ("red", "overcommitted")}
    everything = hours.aggregate(EVERYTHING, WHOLE, ["team", "bucket"], filters={"team": ["red"]})
    pd.testing.assert_frame_equal(seen, everything)
    nobody = Scope(frozenset({"__unallocated__"}))
    assert hours.aggregate(nobody, WHOLE, ["team"]).empty, "no capacity of nobody, by any name"
    assert hours.aggregate(Scope(frozenset()), WHOLE, []).empty


def test_a_filter_on_another_team_finds_nothing(hours: Ledger) -> None:
    scope = Scope(frozenset({"red"}))
    job = hours.aggregate(EVERYTHING, WHOLE, ["job_uid"], filters={"team": ["blue"]}).job_uid[0]
    assert hours.aggregate(scope, WHOLE, ["team"], filters={"team": ["blue"]}).empty
    assert hours.aggregate(scope, WHOLE, [], filters={"bucket": ["unallocated"]}).empty
    assert hours.job_window(EVERYTHING, job) is not None
    assert hours.job_window(scope, "no such job") is None


def test_a_job_of_another_team_cannot_be_seen(ledger: Ledger) -> None:
    window = hour(0)
    steps = progress(("pod-1", window, "steps", 10.0))
    problem = DataProblem(DataProblemCode.END_UNKNOWN, CLUSTER, "pod-1", "end not seen")
    ingest(ledger, window, line(window), progress=steps, problems=[problem])
    for scope, sees in ((Scope(frozenset({"red"})), True), (Scope(frozenset({"blue"})), False)):
        assert (ledger.job_window(scope, "job-1") == window) is sees
        assert ledger.progress(scope, window, "job-1").name.tolist() == ["steps"] * sees
        assert ledger.problems(scope, window) == (problem,) * sees


def test_values_are_literal(ledger: Ledger) -> None:
    window = hour(0)
    names = ["' OR 1=1 --", "%", "_", 'x"; DROP TABLE usage_line; --', "a\\b", ":team", "$1", "%(x)s"]
    ingest(
        ledger, window, line(window), *(line(window, pod_uid=name, team=name, board_ms=5) for name in names)
    )
    for name in names:
        found = ledger.aggregate(EVERYTHING, window, ["team"], filters={"team": [name]})
        assert found[["team", "board_ms"]].to_dict("list") == {"team": [name], "board_ms": [5]}
        assert ledger.aggregate(Scope(frozenset({name})), window, []).board_ms.tolist() == [5]
    assert len(ledger.aggregate(EVERYTHING, window, ["team"])) == len(names) + 1


def test_filters_on_every_dimension_and_on_several(hours: Ledger) -> None:
    frame = all_lines()
    for name in DIMENSIONS:
        value = sorted(set(frame[name]))[-1]
        found = hours.aggregate(EVERYTHING, WHOLE, ["node"], filters={name: [value]})
        pd.testing.assert_frame_equal(found, expected(frame[frame[name] == value], ["node"]))
    both = frame[frame.team.isin(["red", "zebra"]) & (frame.rate_id == "h100@1")]
    filters = {"team": {"red", "zebra"}, "rate_id": ["h100@1"]}
    pd.testing.assert_frame_equal(
        hours.aggregate(EVERYTHING, WHOLE, ["pod"], filters=filters), expected(both, ["pod"])
    )
    assert hours.aggregate(EVERYTHING, WHOLE, ["pod"], filters={"team": []}).empty


def test_an_empty_answer_has_the_same_columns_and_types(ledger: Ledger) -> None:
    dims = ["team", "bucket"]
    empty = ledger.aggregate(EVERYTHING, WHOLE, dims, step_ms=DAY_MS)
    assert empty.empty
    fill(ledger)
    assert empty.dtypes.equals(ledger.aggregate(EVERYTHING, WHOLE, dims, step_ms=DAY_MS).dtypes)


def test_steps_are_cut_at_the_edges_of_the_window(hours: Ledger) -> None:
    window = Window(hour(1).start_ms, hour(4).end_ms)
    found = hours.aggregate(EVERYTHING, window, [], step_ms=4 * HOUR_MS)
    assert found.step_start_ms.tolist() == [part.start_ms for part in window.split(4 * HOUR_MS)]
    assert found.board_ms.sum() == hours.aggregate(EVERYTHING, window, []).board_ms[0]


def test_unknown_dimensions_are_refused_by_name(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="'colour' is not allowed; allowed: cluster, node"):
        ledger.aggregate(EVERYTHING, WHOLE, ["team", "colour"])
    with pytest.raises(InputError, match="'team_label'"):
        ledger.aggregate(EVERYTHING, WHOLE, [], filters={"team_label": ["x"]})
    with pytest.raises(InputError, match="each dimension once"):
        ledger.aggregate(EVERYTHING, WHOLE, ["team", "team"])


def test_a_cut_through_a_window_of_the_ledger_is_refused(hours: Ledger) -> None:
    inside = Window(WHOLE.start_ms + 1, WHOLE.end_ms)
    with pytest.raises(InputError, match=r"cut: alpha 2026-10-01T00:00:00Z/2026-10-01T01:00:00Z"):
        hours.aggregate(EVERYTHING, inside, ["team"])
    with pytest.raises(InputError, match=r"cut: alpha 2026-10-01T05:00:00Z/2026-10-01T06:00:00Z"):
        hours.aggregate(EVERYTHING, Window(WHOLE.start_ms, WHOLE.end_ms - 1), ["team"])
    with pytest.raises(InputError, match=r"in steps of 900000 ms.* and more"):
        hours.aggregate(EVERYTHING, WHOLE, ["team"], step_ms=HOUR_MS // 4)
    with pytest.raises(InputError, match="positive duration"):
        hours.aggregate(EVERYTHING, WHOLE, ["team"], step_ms=0)
    assert hours.aggregate(EVERYTHING, inside, ["team"], filters={"cluster": ["beta"]}).empty


def test_windows_of_two_clusters_with_two_lengths(ledger: Ledger) -> None:
    day = Window(hour(0).start_ms, hour(23).end_ms)
    ingest(ledger, day, line(day, cluster="beta", board_ms=9), cluster="beta")
    for number in range(24):
        ingest(ledger, hour(number), line(hour(number), board_ms=1))
    found = ledger.aggregate(EVERYTHING, day, ["cluster"], step_ms=DAY_MS)
    assert found.board_ms.tolist() == [24, 9]
    only = ledger.aggregate(EVERYTHING, hour(3), [], filters={"cluster": [CLUSTER]})
    assert only.board_ms.tolist() == [1]
    with pytest.raises(InputError, match="cut: beta"):
        ledger.aggregate(EVERYTHING, hour(3), [])


def test_progress_adds_up_over_windows_and_pods(ledger: Ledger) -> None:
    for number in range(3):
        window = hour(number)
        pods = [line(window, pod_uid=uid) for uid in ("pod-1", "pod-2")]
        steps = progress(
            *(
                ("pod-1", window, "steps", 0.1),
                ("pod-2", window, "steps", 0.2),
                ("pod-1", window, "tokens", 5.0),
            ),
            *(("pod-1", window, "steps", 0.7), ("other", window, "steps", 99.0)),
        )
        ingest(ledger, window, *pods, progress=steps)
    found = ledger.progress(EVERYTHING, MONTH.window, "job-1")
    assert found[["name", "amount", "pods"]].values.tolist() == [["steps", 3.0, 2], ["tokens", 15.0, 1]]
    held = ledger.aggregate(EVERYTHING, MONTH.window, ["job_uid"], filters={"job_uid": ["job-1"]})
    sums = found[["counted_board_ms", "counted_nano", "held_board_ms"]].values.tolist()
    assert sums == [[*held[["board_ms", "nano"]].values.tolist()[0], int(held.board_ms.iloc[0])]] * 2
    assert ledger.progress(EVERYTHING, hour(1), "job-1").amount.tolist() == [1.0, 5.0]
    assert ledger.progress(EVERYTHING, hour(9), "job-1").empty


def test_hours_in_which_a_job_did_not_count_are_no_cost_of_its_units(ledger: Ledger) -> None:
    """Its leader counts for all of the gang, in one of two hours."""
    for number in range(2):
        window = hour(number)
        pods = [line(window, pod_uid=uid) for uid in ("pod-1", "pod-2")]
        steps = progress(("pod-1", window, "steps", 4.0)) if number else None
        ingest(ledger, window, *pods, progress=steps)
    whole = ledger.aggregate(EVERYTHING, hour(1), ["job_uid"], filters={"job_uid": ["job-1"]})
    [row] = ledger.progress(EVERYTHING, MONTH.window).to_dict("records")
    assert (row["job_uid"], row["amount"], row["pods"]) == ("job-1", 4.0, 1)
    assert row["counted_nano"] == int(whole.nano.iloc[0])
    assert row["held_board_ms"] == 2 * row["counted_board_ms"] == 2 * int(whole.board_ms.iloc[0])


def test_what_a_pod_counted_is_split_by_the_time_that_it_was_of_each_team(ledger: Ledger) -> None:
    window = hour(0)
    parts = [
        line(window, pod_uid="pod-1", team=team, board_ms=ms, first_ms=window.start_ms)
        for team, ms in (("a", 900_000), ("b", 2_700_000))
    ]
    ingest(ledger, window, *parts, progress=progress(("pod-1", window, "tokens", 100.0)))
    every = ledger.progress(EVERYTHING, MONTH.window)
    assert every[["team", "amount"]].values.tolist() == [["a", 25.0], ["b", 75.0]]
    own = ledger.progress(Scope(frozenset({"a"})), MONTH.window)
    assert own[["team", "amount"]].values.tolist() == [["a", 25.0]], "the same number for who sees one team"


def test_problems_are_listed_once_with_their_time_added(ledger: Ledger) -> None:
    price = DataProblem(DataProblemCode.PRICE_MISSING, CLUSTER, "B300", "no price for B300", 5)
    count = DataProblem(DataProblemCode.COUNT_UNKNOWN, CLUSTER, "node-1", "nothing says how many boards")
    for number in range(3):
        ingest(ledger, hour(number), problems=[count, price, price])
    found = ledger.problems(EVERYTHING, Window(hour(0).start_ms, hour(1).end_ms))
    assert found == (count, DataProblem(price.code, CLUSTER, "B300", price.detail, 10))
    assert ledger.problems(Scope(frozenset({"red"})), MONTH.window) == ()


def test_rates_come_back_whole(hours: Ledger) -> None:
    assert hours.rates(RATES) == RATES
