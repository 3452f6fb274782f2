"""The cost vectors that attribution answers: inputs and results as in the reference, to the nano-unit."""

from __future__ import annotations

from fractions import Fraction

import pandas as pd
import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.money import parse_nano
from gpucost.domain.rates import NodeFacts, RateSpan
from gpucost.domain.time import HOUR_MS, Month, Window
from tests.support.cost_vectors import proportion, share_common, share_proportionally, use_of
from tests.support.frames import FlatRates, NamespaceTeams, build, hours, node, pod, signal, units


def run(
    frames: ClusterFrames,
    length: float = 1,
    price: str | FlatRates = "2.50",
    basis: ShareBasis = ShareBasis.COMPUTE,
    windows: list[Window] | None = None,
) -> Attribution:
    rates = FlatRates((price, 0)) if isinstance(price, str) else price
    spans = windows or list(hours(0, length).split(HOUR_MS))
    return attribute(frames, spans, rates=rates, teams=NamespaceTeams(), basis=basis)


def cost(result: Attribution, name: str) -> int:
    flat = result.flat()
    return int(flat.loc[(flat["pod"] == name) & (flat["bucket"] == "held"), "nano"].sum())


def board_ms(result: Attribution, name: str) -> int:
    flat = result.flat()
    return int(flat.loc[flat["pod"] == name, "board_ms"].sum())


def bucket(result: Attribution, which: Bucket) -> tuple[int, int]:
    return result.totals().get(which, (0, 0))


def dollars(text: str) -> int:
    return parse_nano(text)


@pytest.mark.vector("V7")
@pytest.mark.parametrize("boards", [-1, 0])
def test_v7_a_missing_gpu_count_is_an_error_row_never_zero(boards: int) -> None:
    lonely = run(build(nodes=[node(boards=-1)]), price="2.00")
    assert [problem.code for problem in lonely.problems] == [DataProblemCode.COUNT_UNKNOWN]
    assert lonely.problems[0].subject == "n1"
    held = run(build([pod("a", (0, 1), 2)], nodes=[node(boards=boards)]), price="2.00")
    assert cost(held, "a") == dollars("4.00")
    [problem] = [p for p in held.problems if p.board_ms is not None]
    assert problem.code is DataProblemCode.COUNT_UNKNOWN
    assert "count unknown" in problem.detail
    assert problem.board_ms == 2 * HOUR_MS


@pytest.mark.vector("V8")
def test_v8_idle_is_what_the_asset_costs_less_what_is_allocated_per_cluster() -> None:
    asset, allocated = {"c1": 10, "c2": 10}, {"c1": 6, "c2": 6}
    assert {name: asset[name] - allocated[name] for name in asset} == {"c1": 4, "c2": 4}
    # and the same from intervals: 5 GPUs of each cluster at 2.00, of which 3 are held
    pods = [pod("a", (0, 1), 3), pod("b", (0, 1), 3) | {"cluster": "c2"}]
    nodes = [node(boards=5), node(boards=5) | {"cluster": "c2"}]
    counts = [units(5), units(5) | {"cluster": "c2"}]
    frames = build(pods, nodes, counts)
    watched = pd.concat([frames.observed, frames.observed.assign(cluster="c2")], ignore_index=True)
    flat = run(ClusterFrames(frames.allocations, frames.nodes, frames.capacity, watched), price="2.00").flat()
    idle = flat[flat["bucket"] == "unallocated"].groupby("cluster")["nano"].sum()
    assert idle.to_dict() == {"c": dollars("4.00"), "c2": dollars("4.00")}


V9_ACTIVE = {
    # who -> pool -> cost; two clusters, CPU and RAM; the rest of each namespace's total is never idle
    ("ns1", "c1-cpu"): 3,
    ("ns2", "c1-cpu"): 3,
    ("ns1", "c1-ram"): 13,
    ("ns2", "c1-ram"): 3,
    ("ns2", "c2-cpu"): 3,
    ("ns3", "c2-cpu"): 3,
    ("ns2", "c2-ram"): 3,
    ("ns3", "c2-ram"): 3,
}
V9_TOTAL = {"ns1": 28, "ns2": 36, "ns3": 18}
V9_IDLE = {"c1-cpu": 5, "c1-ram": 15, "c2-cpu": 5, "c2-ram": 5}


def v9_shared() -> dict[str, int]:
    nano = 10**9
    held = {key: value * nano for key, value in V9_ACTIVE.items()}
    shares, left = share_proportionally(held, {pool: value * nano for pool, value in V9_IDLE.items()})
    assert left == {}
    total = {name: value * nano for name, value in V9_TOTAL.items()}
    for (who, _), part in shares.items():
        total[who] += part
    return total


@pytest.mark.vector("V9")
def test_v9_idle_is_shared_by_weight_per_cluster_and_resource() -> None:
    total = v9_shared()
    assert total == {"ns1": dollars("42.6875"), "ns2": dollars("46.3125"), "ns3": dollars("23.0")}
    assert sum(total.values()) == dollars("112")


@pytest.mark.vector("V10")
def test_v10_a_shared_namespace_is_split_evenly_or_by_weight_idle_stays_apart() -> None:
    others = {"ns1": dollars("28"), "ns2": dollars("36")}
    for evenly, expected in ((True, ("37", "45")), (False, ("35.875", "46.125"))):
        parts = share_common(dollars("18"), others, evenly=evenly)
        assert [others[name] + parts[name] for name in ("ns1", "ns2")] == [dollars(text) for text in expected]


@pytest.mark.vector("V11")
def test_v11_overhead_is_shared_by_weight_and_adds_up() -> None:
    active = {name: dollars(str(value)) for name, value in V9_TOTAL.items()}
    overhead = 24 * dollars("7")
    parts = share_common(overhead, active)
    assert sum(parts.values()) == overhead
    for name, expected in (("ns1", "85.366"), ("ns2", "109.756"), ("ns3", "54.878")):
        assert abs(active[name] + parts[name] - dollars(expected)) < dollars("0.0005")


@pytest.mark.vector("V12")
def test_v12_a_filter_does_not_change_what_was_shared() -> None:
    assert {"ns2": v9_shared()["ns2"]} == {"ns2": dollars("46.3125")}


@pytest.mark.vector("V13")
def test_v13_idle_of_a_pool_that_nobody_used_stays_idle() -> None:
    held = {("tenant", "cpu"): 2, ("tenant", "gpu"): 0, ("tenant", "ram"): 1}
    shares, left = share_proportionally(held, {"cpu": 10, "gpu": 12, "ram": 6})
    total = {pool: held[("tenant", pool)] + shares.get(("tenant", pool), 0) for pool in ("cpu", "gpu", "ram")}
    assert total == {"cpu": 12, "gpu": 0, "ram": 7}
    assert left == {"gpu": 12}


@pytest.mark.vector("V14")
def test_v14_the_proportion_of_an_asset_that_each_pod_used() -> None:
    capacity = 4 * 3 * 1000
    assert [proportion(part, capacity) for part in (500, 4500, 3000)] == [
        Fraction(1, 24),
        Fraction(3, 8),
        Fraction(1, 4),
    ]
    assert proportion(1, 0) is None


@pytest.mark.vector("V15")
def test_v15_held_idle_and_total_of_a_day_and_idle_shared_by_weight() -> None:
    result = run(build([pod("A", (0, 24), 5), pod("B", (0, 24), 1)], [node()], [units()]), 24)
    assert (cost(result, "A"), cost(result, "B")) == (dollars("300"), dollars("60"))
    assert bucket(result, Bucket.UNALLOCATED) == (48 * HOUR_MS, dollars("120"))
    assert sum(nano for _, nano in result.totals().values()) == dollars("480")
    held = {("A", "H100"): cost(result, "A"), ("B", "H100"): cost(result, "B")}
    shares, _ = share_proportionally(held, {"H100": dollars("120")})
    assert {who: held[(who, "H100")] + part for (who, _), part in shares.items()} == {
        "A": dollars("400"),
        "B": dollars("80"),
    }


@pytest.mark.vector("V16")
def test_v16_allocated_cost_is_told_apart_into_used_and_idle() -> None:
    frames = build([pod("a", (0, 1))], [node(boards=1)], [units(1)], signals=[signal("a", (0, 1), 1, 0.11)])
    line = run(frames).flat().set_index("bucket").loc["held"]
    use = use_of(int(line["nano"]), int(line["board_ms"]), int(line["observed_ms"]), int(line["busy_ms"]))
    assert (use.used_nano, use.idle_nano, use.unknown_nano) == (dollars("0.275"), dollars("2.225"), 0)
    for seen in ((None, None), (HOUR_MS, None), (None, 0)):
        assert use_of(dollars("2.50"), HOUR_MS, *seen).unknown_nano == dollars("2.50")


@pytest.mark.vector("V17")
def test_v17_a_job_on_eight_busy_gpus_is_as_efficient_as_eight_jobs_on_one() -> None:
    one = build([pod("a", (0, 1), 8)], [node()], [units()], signals=[signal("a", (0, 1), 8, 8)])
    names = [f"p{i}" for i in range(8)]
    eight = build(
        [pod(name, (0, 1)) for name in names],
        [node()],
        [units()],
        signals=[signal(n, (0, 1), 1, 1) for n in names],
    )
    for frames in (one, eight):
        flat = run(frames).flat()
        assert flat["busy_ms"].sum() / flat["observed_ms"].sum() == 1.0


@pytest.mark.vector("V18")
def test_v18_seven_mig_slices_add_up_to_the_board() -> None:
    pods = [pod(f"p{i}", (0, 1), resource="nvidia.com/mig-1g.10gb") for i in range(7)]
    result = run(build(pods, [node(boards=1)], [units(7, "nvidia.com/mig-1g.10gb")]))
    costs = [cost(result, f"p{i}") for i in range(7)]
    assert sum(costs) == dollars("2.50")
    assert sorted(set(costs)) == [357_142_857, 357_142_858]


@pytest.mark.vector("V19")
@pytest.mark.parametrize(
    ("basis", "three", "two", "idle"),
    [
        (ShareBasis.COMPUTE, "1.071428571", "0.714285714", "0.714285714"),
        (ShareBasis.MEMORY, "1.25", "0.625", "0.625"),
    ],
)
def test_v19_mig_by_compute_or_memory_and_the_rest_of_the_board_is_idle(
    basis: ShareBasis, three: str, two: str, idle: str
) -> None:
    kinds = [units(1, "nvidia.com/mig-3g.40gb"), units(1, "nvidia.com/mig-2g.20gb")]
    pods = [
        pod("a", (0, 1), resource="nvidia.com/mig-3g.40gb"),
        pod("b", (0, 1), resource="nvidia.com/mig-2g.20gb"),
    ]
    result = run(build(pods, [node(boards=1)], kinds), basis=basis)
    parts = [cost(result, "a"), cost(result, "b"), bucket(result, Bucket.UNALLOCATED)[1]]
    assert sum(parts) == dollars("2.50")
    for part, expected in zip(parts, (three, two, idle), strict=True):
        assert abs(part - dollars(expected)) <= 3  # a slot is off by less than a nano-unit; a slice has 3
    assert set(result.flat()["basis"]) == {basis.value}


@pytest.mark.vector("V20")
@pytest.mark.fault(36)
@pytest.mark.parametrize(
    ("resource", "product"),
    [
        ("nvidia.com/gpu.shared", "NVIDIA-H100-80GB-HBM3"),
        ("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3-SHARED"),
        ("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3"),
    ],
)
def test_v20_time_slicing_replicas_share_one_board_renamed_or_not(resource: str, product: str) -> None:
    pods = [pod(name, (0, 1), resource=resource) for name in "abc"]
    result = run(build(pods, [node(boards=1, product=product)], [units(4, resource, replicas=4)]))
    assert [cost(result, name) for name in "abc"] == [dollars("0.625")] * 3
    assert bucket(result, Bucket.UNALLOCATED) == (HOUR_MS // 4, dollars("0.625"))


@pytest.mark.fault(36)
def test_seven_pods_on_one_shared_gpu_are_one_gpu_and_the_policy_is_named() -> None:
    pods = [pod(f"p{i}", (0, 1)) for i in range(7)]
    result = run(build(pods, [node(boards=1)], [units(7, replicas=7)]))
    flat = result.flat()
    assert result.totals() == {Bucket.HELD: (HOUR_MS, dollars("2.50"))}
    assert set(zip(flat["share_num"], flat["share_den"], flat["basis"], strict=True)) == {(1, 7, "compute")}


@pytest.mark.vector("V21")
def test_v21_four_quarters_of_a_gpu_are_one_gpu_hour() -> None:
    pods = [pod(name, (0, 1), 25, "nvidia.com/gpucores") for name in "abcd"]
    result = run(build(pods, [node(boards=1)], [units(100, "nvidia.com/gpucores")]))
    assert result.totals() == {Bucket.HELD: (HOUR_MS, dollars("2.50"))}
    assert ResourceCatalog().unit("nvidia.com/gpucores", "").share == Fraction(1, 100)


@pytest.mark.vector("V22")
@pytest.mark.fault(33)
def test_v22_a_job_across_the_month_end_pays_in_each_month() -> None:
    october = Month(2026, 10).window
    start = october.end_ms - HOUR_MS // 2
    late = pod("a", (0, 0), 8) | {"start_ms": start, "end_ms": start + HOUR_MS}
    frames = build([late], [node()], [units()])
    november = Month(2026, 11).window
    for window in (
        Window(october.end_ms - HOUR_MS, october.end_ms),
        Window(november.start_ms, november.start_ms + HOUR_MS),
    ):
        assert board_ms(run(frames, windows=[window]), "a") == 4 * HOUR_MS


@pytest.mark.vector("V23")
@pytest.mark.fault(34)
@pytest.mark.parametrize("step", [HOUR_MS, 24 * HOUR_MS, 7 * 60_000])
def test_v23_a_price_change_splits_the_day_at_its_instant(step: int) -> None:
    frames = build([pod("a", (0, 24))], [node(boards=1)], [units(1)])
    price = FlatRates(("2.00", 0), ("3.00", 12))
    result = run(frames, price=price, windows=list(hours(0, 24).split(step)))
    assert cost(result, "a") == dollars("60")
    by_rate = result.flat().groupby("rate_id")["nano"].sum().to_dict()
    assert sorted(by_rate.values()) == [dollars("24"), dollars("36")]


@pytest.mark.vector("V24")
def test_v24_a_spot_node_evicted_after_twenty_minutes() -> None:
    third = 1 / 3
    spot = node(boards=4, capacity_type="spot", start_ms=hours(0, 1).start_ms, end_ms=hours(0, third).end_ms)
    frames = build([pod("a", (0, third), 4)], [spot], [units(4, end_ms=hours(0, third).end_ms)])
    result = run(frames, price="1.20")
    assert cost(result, "a") == dollars("1.60")
    assert result.totals().keys() == {Bucket.HELD}


@pytest.mark.vector("V25")
def test_v25_missing_signals_lower_coverage_not_efficiency_and_not_cost() -> None:
    measured = signal("a", (0, 22), 22, 11)
    result = run(build([pod("a", (0, 24))], [node(boards=1)], [units(1)], signals=[measured]), 24)
    flat = result.flat()
    assert cost(result, "a") == dollars("60")
    assert flat["busy_ms"].sum() * 2 == flat["observed_ms"].sum()
    assert Fraction(int(flat["observed_ms"].sum()), int(flat["board_ms"].sum())) == Fraction(22, 24)
    assert flat["observed_ms"].isna().sum() == 2


@pytest.mark.vector("V26")
@pytest.mark.fault(35)
def test_v26_a_team_label_that_changes_mid_run_charges_both_teams_by_time_held() -> None:
    pods = [pod("a", (0, 0.25), 4, team_label="red"), pod("a", (0.25, 1), 4, team_label="blue")]
    result = run(build(pods, [node(boards=4)], [units(4)]))
    flat = result.flat()
    assert flat.groupby("team")["board_ms"].sum().to_dict() == {"blue": 3 * HOUR_MS, "red": HOUR_MS}
    assert flat["nano"].sum() == dollars("10")


@pytest.mark.vector("V7")
def test_a_model_without_a_price_is_an_error_that_names_it_never_a_default() -> None:
    def nothing(facts: NodeFacts, window: Window) -> list[RateSpan]:
        return [RateSpan(window.start_ms, window.end_ms, None, f"no price for {facts.model}")]

    frames = build([pod("a", (0, 1))], [node(boards=1, product="Vendor-X1")], [units(1)])
    result = attribute(frames, [hours(0, 1)], rates=nothing, teams=NamespaceTeams())
    assert result.flat()["nano"].isna().all()
    [problem] = result.problems
    assert (problem.code, problem.subject) == (DataProblemCode.PRICE_MISSING, "Vendor-X1")
    assert (problem.detail, problem.board_ms) == ("no price for Vendor-X1", HOUR_MS)
