"""Quotas as they were, as the quotas of a policy: every file is read back, and its figures are by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpucost.charges.capacity_cells import CapacityCell
from gpucost.charges.policy_file import PolicyBook
from gpucost.charges.quota_history import CohortSpan, QuotaHistory, QuotaSpan, UnitModel, quota_file
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from tests.charges.worlds import START_MS, cell, free, held

DAY = Window(START_MS, START_MS + 24 * HOUR_MS)
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
WHOLE = UnitModel("H100", Fraction(1))
UNITS = {
    ("prod", "h100", GPU): frozenset({WHOLE}),
    ("prod", "h100-shared", GPU): frozenset({UnitModel("H100", Fraction(1, 4))}),
    ("prod", "mixed", GPU): frozenset({WHOLE, UnitModel("A100-80GB", Fraction(1))}),
    ("prod", "sliced", SLICE): frozenset(UnitModel("H100", Fraction(1, part)) for part in (7, 8)),
}


def at(hour: float) -> int:
    return START_MS + round(hour * 60) * MINUTE_MS


def span(
    first_h: float, last_h: float, nominal: int, *, queue: str = "cq", cohort: str = "", flavor: str = "h100",
    resource: str = GPU, limit: int | None = None, used: int | None = 0,
) -> QuotaSpan:  # fmt: skip
    times = at(first_h), at(last_h)
    lending = None if limit is None else Fraction(limit)
    reserved = None if used is None else Fraction(used)
    return QuotaSpan("prod", queue, cohort, flavor, resource, *times, Fraction(nominal), lending, reserved)


def cohort(
    name: str, parent: str, first_h: float = 0, last_h: float = 24, flavor: str = "",
    nominal: int | None = None, limit: int | None = None,
) -> CohortSpan:  # fmt: skip
    amounts = (None if each is None else Fraction(each) for each in (nominal, limit))
    times = at(first_h), at(last_h)
    return CohortSpan("prod", name, parent, flavor, GPU if flavor else "", *times, *amounts)


def written(
    spans: list[QuotaSpan], cohorts: tuple[CohortSpan, ...] = (), observed: tuple[Window, ...] = (DAY,),
    cohort_teams: dict[str, str] | None = None, cells: tuple[CapacityCell, ...] = (),
) -> tuple[PolicyBook, list[str]]:  # fmt: skip
    """The file as a policy reads it, and what its comments say."""
    teams = {each.queue: f"team-{each.queue}" for each in spans}
    watched = {"prod": observed}
    history = QuotaHistory(DAY, spans, cohorts, UNITS, watched, teams, cohort_teams or {}, cells=cells)
    text = quota_file(history)
    assert text == quota_file(history)
    policy = "version: 1\nname: a\nquotas_file: quotas.yaml"
    book = PolicyBook.parse(policy, "policy.yaml", beside=lambda name: (text, name))
    return book, [line for line in text.splitlines() if line.startswith("# Left out")]


def hour(instant_ms: int) -> float:
    return (instant_ms - START_MS) / HOUR_MS


def rows(book: PolicyBook) -> list[tuple[object, ...]]:
    return [
        (each.queue or each.cohort, Fraction(each.gpus, NANO), hour(each.start_ms), hour(each.end_ms))
        for each in book.file.quotas
    ]


def test_flavors_of_a_model_are_one_quota_in_gpus() -> None:
    """8 GPUs, and 6 units of a quarter: 9.5, from 12:00 on with 10 of these units 10.5. A limit of 2 units
    leaves 8 + 0.5 to lend."""
    found, left_out = written(
        [
            span(0, 24, 8),
            span(0, 12, 6, flavor="h100-shared"),
            span(12, 24, 10, flavor="h100-shared", limit=2),
        ]
    )
    assert rows(found) == [("cq", Fraction("9.5"), 0, 12), ("cq", Fraction("10.5"), 12, 24)]
    assert [each.lending_limit for each in found.file.quotas] == [None, int(8.5 * NANO)]
    assert [(each.team, each.model, each.cluster) for each in found.file.quotas] == [
        ("team-cq", "H100", "prod")
    ] * 2
    assert left_out == []


def test_a_change_holds_to_its_minute_and_use_is_no_change() -> None:
    noon = 12 + 34 / 60
    found, _ = written([span(0, 3, 8), span(3, noon, 8), span(noon, 24, 4)])
    assert [(gpus, start, end) for _, gpus, start, end in rows(found)] == [(8, 0, noon), (4, noon, 24)]


def test_what_has_no_one_model_or_share_is_named_and_left_out() -> None:
    found, left_out = written(
        [
            span(0, 24, 8),
            span(0, 24, 8, flavor="mixed"),
            span(0, 24, 7, flavor="sliced", resource=SLICE),
            span(0, 24, 2, flavor="new\nversion: 2"),
        ]
    )
    assert rows(found) == [("cq", 8, 0, 24)]
    assert len(left_out) == 3
    assert '"A100-80GB", "H100" in it (--model FLAVOR=MODEL)' in left_out[0]
    assert 'flavor "new\\nversion: 2", queue "cq": no pod held any' in left_out[1]
    assert "different parts of a GPU" in left_out[2]


def test_quota_goes_on_while_nobody_looks_and_ends_where_a_queue_is_gone() -> None:
    """From 6 to 8 nobody looked: what was seen last holds until 8. From 12 to 13 the queue was not there."""
    seen = Window(at(0), at(6)), Window(at(8), at(24))
    found, _ = written([span(0, 6, 8), span(8, 12, 4), span(13, 24, 4)], observed=seen)
    assert [row[1:] for row in rows(found)] == [(8, 0, 8), (4, 8, 12), (4, 13, 24)]


def test_cohorts_stand_where_they_stood() -> None:
    """ml is below all until 12:00, then below other: two cohorts of the file, each with its parent."""
    cohorts = (
        cohort("ml", "all", 0, 12),
        cohort("ml", "other", 12, 24),
        cohort("all", ""),
        cohort("other", ""),
    )
    found, _ = written([span(0, 24, 8, cohort="ml")], cohorts)
    assert rows(found) == [("cq", 8, 0, 12), ("cq", 8, 12, 24)]
    assert [each.cohort for each in found.file.quotas] == ["ml", "ml (2)"]
    assert {each.name: each.parent for each in found.file.cohorts} == {"ml": "all", "ml (2)": "other"}


def test_a_circle_of_cohorts_is_a_path_that_ends() -> None:
    found, _ = written([span(0, 24, 8, cohort="a")], (cohort("a", "b"), cohort("b", "a")))
    assert [each.cohort for each in found.file.quotas] == ["a"]


def test_quota_of_a_cohort_itself() -> None:
    """With a limit on h100, which is all of the model, it is written; where a queue has another flavor of it
    too, the limit is not of the model, and is named."""
    cohorts = cohort("ml", "all"), cohort("all", ""), cohort("ml", "all", flavor="h100", nominal=6, limit=2)
    spans = [span(0, 24, 8, cohort="ml")]
    found, left_out = written(spans, cohorts, cohort_teams={"ml": "platform"})
    own = found.file.quotas[-1]
    assert (own.shared, own.team, own.cohort, own.gpus, own.lending_limit) == (
        *(True, "platform", "ml", 6 * NANO, 2 * NANO),
    )
    assert left_out == []
    found, left_out = written([*spans, span(0, 24, 4, flavor="h100-shared", cohort="ml")], cohorts)
    own = found.file.quotas[-1]
    assert (own.shared, own.team, own.lending_limit) == (True, None, None)
    assert "lending limit of cohort" in left_out[0]


def reservations(book: PolicyBook) -> list[tuple[object, ...]]:
    return [
        (
            each.cluster,
            each.queue,
            each.model,
            Fraction(each.gpus, NANO),
            hour(each.start_ms),
            hour(each.end_ms),
        )
        for each in book.file.reservations
    ]


FIRST = cell(held("ads", 4, queue="cq"), held("ads", 2, 30, 60, queue="cq"), free(4, 0, 30), free(2, 30, 60))


def test_what_was_reserved_is_written_where_pods_held_less() -> None:
    """6 were reserved, and pods held 4 until 00:30; from then on all 6. A part is in another flavor of the
    model: 4 GPUs, and 8 units of a quarter."""
    found, left_out = written([span(0, 24, 8, used=6)], cells=(FIRST,))
    assert reservations(found) == [("prod", "cq", "H100", 6, 0, 0.5)]
    assert left_out == []
    both = [span(0, 24, 8, used=4), span(0, 24, 8, flavor="h100-shared", used=8)]
    assert reservations(written(both, cells=(FIRST,))[0]) == [("prod", "cq", "H100", 6, 0, 0.5)]
    changed = [span(0, 0.25, 8, used=5), span(0.25, 0.4, 8, used=7), span(0.4, 24, 8, used=4)]
    assert [row[3:] for row in reservations(written(changed, cells=(FIRST,))[0])] == [
        (5, 0, 0.25),
        (7, 0.25, 0.4),
    ]


def test_nothing_is_reserved_where_nobody_looked_or_nothing_says_so() -> None:
    """Looked at from 00:06 to 00:12 only; with a break in the amounts; and without any."""
    seen = (Window(at(0.1), at(0.2)),)
    found, _ = written([span(0, 24, 8, used=6)], observed=seen, cells=(FIRST,))
    assert [row[3:] for row in reservations(found)] == [(6, 0.1, 0.2)]
    found, _ = written([span(0, 0.1, 8, used=6), span(0.1, 24, 8, used=None)], cells=(FIRST,))
    assert [row[3:] for row in reservations(found)] == [(6, 0, 0.1)]
    found, left_out = written([span(0, 24, 8, used=None)], cells=(FIRST,))
    assert (reservations(found), len(left_out)) == ([], 1)
    assert "the source does not say what was reserved" in left_out[0]
    assert reservations(written([span(0, 24, 8, used=6)])[0]) == []


def test_a_minute_or_two_is_how_late_a_source_sees_an_end() -> None:
    """Pods of 2 GPUs end at 00:30, and their quota is seen to be free at 00:32: 2 x 2 / 60 GPU-hours. At
    00:33 it is a reservation."""
    ends = cell(held("ads", 4, queue="cq"), held("ads", 2, 0, 30, queue="cq"), free(2), free(2, 30, 60))
    late = [span(0, 32 / 60, 8, used=6), span(32 / 60, 24, 8, used=4)]
    found, left_out = written(late, cells=(ends,))
    assert reservations(found) == []
    assert left_out == [
        "# Left out: what was reserved and not held for two minutes or less: 1 times, together 0.06 "
        "GPU-hours. Dates are no more exact than that."
    ]
    later = [span(0, 33 / 60, 8, used=6), span(33 / 60, 24, 8, used=4)]
    assert [row[3:] for row in reservations(written(later, cells=(ends,))[0])] == [(6, 0.5, 33 / 60)]


def test_a_ledger_that_knows_no_queue_of_any_pod_says_nothing_of_reservations() -> None:
    """Of pods that only kube-state-metrics knows the ledger has no ClusterQueue: all would be unheld."""
    found, left_out = written([span(0, 24, 8, used=6)], cells=(cell(held("ads", 6), free(2)),))
    assert reservations(found) == []
    assert "does not say of which ClusterQueue its pods are" in left_out[0]


@given(st.data())
def test_gpu_time_of_the_file_is_that_of_the_history(data: st.DataObject) -> None:
    """Random stretches of random quotas, end to end: the file has the integral of each queue, exactly where
    GPUs are a whole number of nano-units, and never two quotas at a time (which a policy refuses)."""
    spans, expected = [], {"a": 0, "b": 0}
    for queue in expected:
        for flavor, per in (("h100", 4), ("h100-shared", 1)):
            cuts = data.draw(st.lists(st.integers(1, 24 * 60 - 1), max_size=4, unique=True))
            edges = [0, *sorted(cuts), 24 * 60]
            for first, last in pairwise(edges):
                nominal = data.draw(st.integers(0, 9))
                spans.append(span(first / 60, last / 60, nominal, queue=queue, flavor=flavor))
                expected[queue] += nominal * per * (last - first)
    found, _ = written(data.draw(st.permutations(spans)))
    for queue, quarters in expected.items():
        own = [each for each in found.file.quotas if each.queue == queue]
        time = sum(each.gpus * 4 * (each.end_ms - each.start_ms) for each in own)
        assert time == quarters * NANO * MINUTE_MS
